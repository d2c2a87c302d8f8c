"""Reading a Dockerfile: lines, stages, arguments, and what is not a Dockerfile."""

from pathlib import Path

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.image.context.copied_files import locks_of
from trainyard.image.context.dockerfile import Dockerfile, expand, pairs_of, parse_dockerfile


def final_base(parsed: Dockerfile) -> str:
    return parsed.ancestors(len(parsed.stages) - 1)[0].image


def test_continued_lines_comments_and_here_documents() -> None:
    text = (
        "# syntax=docker/dockerfile:1\n"
        "ARG V=1\n"
        "FROM a:${V} AS Build\n"
        "RUN one && \\\n"
        "  # a comment in between\n"
        "  two\n"
        "\n"
        "RUN <<EOF\n"
        "FROM is text here\n"
        "EOF\n"
        "COPY <<'X' /x\nUSER root\nX\n"
        "FROM build\n"
        "user 1000\n"
    )
    parsed = parse_dockerfile(text, "D")
    names = [(i.name, i.line, i.stage) for i in parsed.instructions]
    assert names == [
        ("ARG", 2, -1),
        ("FROM", 3, 0),
        ("RUN", 4, 0),
        ("RUN", 8, 0),
        ("COPY", 11, 0),
        ("FROM", 14, 1),
        ("USER", 15, 1),
    ]
    assert [s.image for s in parsed.stages] == ["a:1", "build"]
    assert [s.image for s in parsed.bases] == ["a:1"]
    assert final_base(parsed) == "a:1"
    user = parsed.last("USER")
    assert user is not None
    assert user.text == "1000"
    here_string = parse_dockerfile("FROM a\nRUN cat <<<X\nUSER 1\n", "D")
    assert [i.name for i in here_string.instructions] == ["FROM", "RUN", "USER"]


def test_variables_are_filled_in() -> None:
    one = {"A": "1"}
    for text, values, expected in (
        *(("$A", one, "1"), ("${A}", one, "1"), ("${A:-2}", {}, "2"), ("${A:-2}", one, "1")),
        *(("${A:+x}", one, "x"), ("${A:+x}", {}, ""), ("$B/x", one, "$B/x")),
    ):
        assert expand(text, values) == expected


PINNED = "uv@sha256:" + "a" * 64


@each_case(
    ("line", "expected"),
    [
        ("COPY --from=uv:1 /uv /bin/", ["uv:1"]),
        ("COPY --chown=1 --from=uv:$V /uv /bin/", ["uv:2"]),
        ("COPY --from=$UNKNOWN /uv /bin/", ["$UNKNOWN"]),
        ("ADD --from=uv /uv /bin/", ["uv"]),
        ("RUN --mount=type=cache,target=/c --mount=type=bind,from=uv:1,target=/u cp /u/uv /", ["uv:1"]),
        ("ONBUILD COPY --from=uv:1 /uv /bin/", ["uv:1"]),
        (f"COPY --from={PINNED} /uv /bin/", []),
        ("COPY --from=0 /uv /bin/", []),
        ("COPY --from=Tools /uv /bin/", []),
        ("RUN --mount=from=tools,target=/u cp /u/uv /", []),
        ("RUN echo --mount=from=uv:1", []),
        ("COPY x --from=uv:1", []),
        ("COPY --from=last /uv /bin/", ["last"]),
    ],
)
def test_an_image_that_is_only_read_from_is_a_base_too(line: str, expected: list[str]) -> None:
    base = "x@sha256:" + "b" * 64
    parsed = parse_dockerfile(f"ARG V=2\nFROM {base} AS tools\nFROM {base} AS last\n{line}\n", "D")
    assert [stage.image for stage in parsed.unpinned] == expected
    assert len(parsed.bases) == 2 + len(expected) + (PINNED in line)


def test_both_forms_of_env() -> None:
    for line, expected in (
        ("ENV A=1 B=2", {"A": "1", "B": "2"}),
        ('ENV A="x y" B=2', {"A": "x y", "B": "2"}),
        ("ENV A some words", {"A": "some words"}),
        ("ENV A\tsome words", {"A": "some words"}),
    ):
        assert pairs_of(line.removeprefix("ENV ")) == expected


def test_what_is_no_dockerfile_is_refused_with_its_line() -> None:
    for text, says in (
        ("", "no FROM"),
        ("RUN x\n", "no FROM"),
        ("FROM a\nINSTALL x\n", "D:2: 'INSTALL'"),
        ("FROM a b c\n", "D:1: FROM takes"),
        ("{}\n", "D:1: '{}'"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse_dockerfile(text, "D")
        assert says in str(caught.value)


def test_an_argument_without_a_default_keeps_that_of_an_earlier_one_and_may_have_spaces() -> None:
    parsed = parse_dockerfile('ARG V=1\nARG A="7.0 8.0+PTX" B=2\nFROM a\nARG V\nARG W\n', "D")
    assert parsed.arguments == {"V": "1", "A": "7.0 8.0+PTX", "B": "2", "W": ""}


def test_the_locks_of_an_image_are_those_that_it_copies_and_installs() -> None:
    text = (
        "FROM a\n"
        "COPY requirements-uv.txt requirements-training.txt requirements-dev.txt ./\n"
        "COPY requirements-verl.txt x/requirements-other.txt /\n"
        "RUN cat requirements-run.txt requirements-dev.txt && pip install -r requirements-uv.txt\n"
        "RUN sh scripts/install_environment.sh training && uv pip sync -q /requirements-verl.txt\n"
        "RUN pip install -r requirements-here.txt -r /requirements-other.txt\n"
    )
    assert locks_of(parse_dockerfile(text, "D")) == ("requirements-training.txt", "requirements-verl.txt")


def test_the_locks_of_our_own_images_are_found() -> None:
    images = {"fsdp": ["training"], "verl": ["verl"], "megatron": ["training", "megatron"]}
    for kind, own in images.items():
        text = (Path(__file__).resolve().parents[3] / "docker" / kind / "Dockerfile").read_text()
        assert locks_of(parse_dockerfile(text, "D")) == tuple(f"requirements-{one}.txt" for one in own)


def test_a_base_without_a_value_stays_as_written() -> None:
    for declares in ("", "ARG BASE\nARG X\n", "ARG BASE=\nARG X=${Z}\n"):
        for line, filled in (
            ("FROM $BASE", "a:1"),
            ("FROM ${BASE}", "a:1"),
            ("FROM r.io/a:${X}-b", "r.io/a:2-b"),
        ):
            assert "$" in final_base(parse_dockerfile(f"{declares}{line}\n", "D"))
            given = parse_dockerfile(f"{declares}{line}\n", "D", {"BASE": "a:1", "X": "2"})
            assert final_base(given) == filled or not declares
