"""A bucket as a store, through boto3 and a pool of threads; AWS's own settings and variables are honoured.

    store      what a store does, in terms of S3's operations
    uploads    one file in one request
    parts      a large one in parts, hashed as they go; `unfinished`: those of an upload that was cut off
    memory     what parts and ranges are held in: one budget for all files
    checksums  what S3 computes over parts
    bucket     one S3 operation: bounded retries of what boto3 does not know to heal
    access     boto3's client, made as AWS's settings say
    clock      the time that requests are signed by, put right where the machine's is refused
    refusals   what S3 or the network refused, in words for the person who can mend it

One client does everything. boto3's CRT client is not used: it sends and fetches whole files, and does neither
our checksums of parts nor claims nor listings, so that it would be a second client beside this one.
"""

from trainyard.gateways.s3.store import S3Store

__all__ = ["S3Store"]
