#!/bin/sh
# Install the EFA stack of AWS into an image: libfabric, rdma-core and the NCCL plugin aws-ofi-nccl, as one tested set.
#
#   install_efa.sh VERSION SHA256
#
# An empty VERSION installs nothing: an image for machines without EFA, such as one box with GPUs.
#
# The kernel module is the host's. No environment variable is set: from libfabric 1.18 and aws-ofi-nccl 1.7 on the plugin
# finds out by itself what the network card can do, and FI_EFA_USE_DEVICE_RDMA=1 aborts where there is no RDMA.
set -eu

version=$1 sha256=$2
if [ -z "$version" ]; then
  echo "no EFA: EFA_INSTALLER_VERSION is empty" >&2
  exit 0
fi
archive=aws-efa-installer-$version.tar.gz
folder=$(mktemp -d)
cd "$folder"
curl --fail --silent --show-error --location --retry 3 --output "$archive" \
  "https://efa-installer.amazonaws.com/$archive"
echo "$sha256  $archive" | sha256sum --check --strict --quiet
tar --extract --gzip --file "$archive"
cd aws-efa-installer
apt-get update
# MPI is removed again, nothing here uses it; limits are the container runtime's.
./efa_installer.sh --yes --skip-kmod --skip-limit-conf --no-verify
rm -rf /opt/amazon/openmpi* /var/lib/apt/lists/* "$folder"

# The loader finds both without LD_LIBRARY_PATH, which a job's own setting would replace.
printf '%s\n' /opt/amazon/efa/lib /opt/amazon/ofi-nccl/lib /opt/amazon/ofi-nccl/lib/x86_64-linux-gnu \
  >/etc/ld.so.conf.d/000-trainyard-efa.conf
ldconfig
for library in libfabric.so libnccl-net; do
  ldconfig -p | grep --quiet "$library" || {
    echo "the loader does not find $library after the installation of EFA $version" >&2
    exit 1
  }
done
