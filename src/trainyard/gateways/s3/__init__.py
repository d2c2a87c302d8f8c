"""An S3 bucket as a store, through boto3 and a pool of threads; AWS's own settings and variables apply.

    store            the operations of a store, on S3
    uploads          upload a file in one request, or a large one in parts, hashed while read
    client           boto3's client, and one operation with bounded retries of errors that it does not retry
    refusals         errors of S3 or the network, in words for the person who can fix them

boto3 makes all requests. Large files do not use awscrt's transfers, which support neither our part checksums
nor claims.
"""
