"""Store URLs and paths. URLs under which written files could not be found again are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

import depthrate
from depthrate.storage.files.store import Store, StoreError
from tests.support.tests_rows import commit


@pytest.mark.parametrize(
    "url",
    [
        *("s3://bucket//x", "s3://", "s3:///x", "s3://bucket/a//b", "s3://bucket/../x", "s3://bucket/./x", "gs://b//x"),
        *(
            "nosuch://x",
            "github://x",
            "reference://x",
            "jupyter://x",
            "generic://x",
            "dir://x",
            "zip://no-such-file.zip",
        ),
        *("a\0b", "s3://bucket/a\0b", b"bytes", 7, None, ["a"]),
    ],
)
def test_what_names_no_place_is_refused_with_what_to_write(url: object) -> None:
    with pytest.raises(StoreError, match=r"(?s)cannot open .*://bucket"):
        Store(url)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3://bucket/a/b/"])
def test_a_bucket_and_a_folder_in_it_are_places(url: str) -> None:
    pytest.importorskip("s3fs")
    assert Store(url).root in ("bucket", "bucket/a/b")


def test_a_path_names_a_folder(tmp_path: Path) -> None:
    commit(Store(tmp_path / "store"), "20260101T000000_aaaaaaaaaaaa", ["t1"])
    assert depthrate.open(tmp_path / "store").sql("select trial_id from trials").fetchall() == [("t1",)]
