"""A bucket as a store, through boto3 and a pool of threads; AWS_ENDPOINT_URL is honoured.

    store      what a store does, in terms of S3's operations
    uploads    one file in one request
    parts      a large one in parts, hashed as they go; `unfinished`: those of an upload that was cut off
    checksums  what S3 computes over parts
    bucket     one S3 operation: time limits, bounded retries
    access     how the bucket is reached, as AWS's settings say; botocore's client once it is needed
    direct     requests without botocore, which costs ten times as much; what fails goes to botocore
    answers    what such a request is answered; `listing`: the XML of a listing
    signatures Signature Version 4 of such a request
    clock      the time that requests are signed by, put right where the machine's is refused
    refusals   what S3 or the network refused, in words for the person who can mend it

boto3's CRT client is not used: it ignores an endpoint without a word (boto/boto3#4839), and what bounds the
speed is the SHA-256 of the file, not the client.
"""

from trainyard.gateways.s3.store import S3Store

__all__ = ["S3Store"]
