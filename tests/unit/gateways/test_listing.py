"""A page of a listing: asked for and understood as botocore does."""

from typing import Any

import pytest
from botocore.session import Session

from trainyard.gateways.s3.listing import listing_of, listing_query

PAGE = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>runs</Name><Prefix>a+b%2F</Prefix>
<EncodingType>url</EncodingType><KeyCount>2</KeyCount><IsTruncated>true</IsTruncated>
<NextContinuationToken>1ue/&lt;+=</NextContinuationToken>
<Contents><Key>a+b%2F%C3%A4%2B&amp;</Key><LastModified>2026-11-20T01:02:03.000Z</LastModified>
<ETag>&quot;abc-2&quot;</ETag><Size>5368709121</Size><StorageClass>STANDARD</StorageClass></Contents>
<Contents><Key>b</Key><LastModified>2026-11-20T01:02:03+02:00</LastModified><Size>0</Size></Contents>
<CommonPrefixes><Prefix>run-1%2F</Prefix></CommonPrefixes></ListBucketResult>"""


def theirs(content: bytes) -> dict[str, Any]:
    from botocore.handlers import decode_list_object_v2
    from botocore.parsers import create_parser

    model = Session().get_service_model("s3")
    parser = create_parser("rest-xml")
    answer = {"body": content, "headers": {}, "status_code": 200}
    found: dict[str, Any] = parser.parse(answer, model.operation_model("ListObjectsV2").output_shape)
    context = {"encoding_type_auto_set": True}
    decode_list_object_v2(found, context)
    return found


def test_a_page_says_what_botocore_reads_in_it() -> None:
    ours, known = listing_of(PAGE.encode()), theirs(PAGE.encode())
    assert ours["Contents"][0]["Key"] == "a b/ä+&"
    assert ours["Contents"][0]["Size"] == 5 * 2**30 + 1
    for kind in ("Contents", "CommonPrefixes"):
        names = [set(each) - {"StorageClass"} for each in known[kind]]
        expected = [
            {name: each[name] for name in wanted} for each, wanted in zip(known[kind], names, strict=True)
        ]
        assert [
            {name: each[name] for name in wanted} for each, wanted in zip(ours[kind], names, strict=True)
        ] == expected
    assert (ours["IsTruncated"], ours["NextContinuationToken"]) == (True, "1ue/<+=")


def test_names_that_are_not_quoted_stay_as_they_are() -> None:
    page = "<ListBucketResult><Contents><Key>a+%2F</Key></Contents></ListBucketResult>"
    assert listing_of(page.encode()) == {"Contents": [{"Key": "a+%2F"}]}


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<Error><Code>NoSuchBucket</Code></Error>",
        "<ListBucketResult>",
        "<ListBucketResult><IsTruncated>maybe</IsTruncated></ListBucketResult>",
        "<ListBucketResult><Contents><Size>x</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><LastModified>x</LastModified></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><LastModified>0001-01-01T00:00:00+23:59</LastModified></Contents></ListBucketResult>",
        "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%FF</Key></Contents></ListBucketResult>",
    ],
)
def test_what_is_no_page_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        listing_of(page.encode())


def test_a_page_is_utf_8_whatever_it_says() -> None:
    page = "<?xml version='1.0' encoding='UTF-9'?><ListBucketResult><Prefix>ä</Prefix></ListBucketResult>"
    assert listing_of(page.encode()) == {}


def test_a_time_without_a_zone_is_utc() -> None:
    entry = "<Contents><LastModified>2026-11-20T01:02:03</LastModified></Contents>"
    (found,) = listing_of(f"<ListBucketResult>{entry}</ListBucketResult>".encode())["Contents"]
    assert found["LastModified"].isoformat() == "2026-11-20T01:02:03+00:00"


def test_what_is_not_known_here_is_not_asked() -> None:
    assert listing_query({"Prefix": "a", "MaxKeys": 1}) is None


def test_a_query_is_in_the_order_of_its_names() -> None:
    assert listing_query({"Prefix": "run 1/ä", "Delimiter": "/", "ContinuationToken": "a+/="}) == (
        "continuation-token=a%2B%2F%3D&delimiter=%2F&encoding-type=url&list-type=2&prefix=run%201%2F%C3%A4"
    )
