"""Object storage: few requests, retries of server errors, and clear messages when it refuses."""

import os
from collections.abc import Iterator

import pytest

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.files.store import Store, StoreError
from tests.support.s3_server import BUCKET, S3Server, forget_s3_clients
from tests.support.tests_rows import commit


@pytest.fixture(autouse=True)
def fresh_clients() -> Iterator[None]:
    """Create new clients: tests here change the environment that clients read, or count their requests."""
    forget_s3_clients()
    yield
    forget_s3_clients()


@pytest.fixture
def store(s3: S3Server) -> Store:
    store = Store(s3.new_url())
    store.list()
    s3.reset()
    return store


def test_one_put_a_file_and_one_get(s3: S3Server, store: Store) -> None:
    store.write("a/b", b"x" * 1_000_000, durable=True)
    assert s3.counts() == {"PUT": 1}
    store.read("a/b")
    assert s3.counts() == {"PUT": 1, "GET": 1}


def test_a_thousand_files_are_deleted_by_one_request(s3: S3Server, store: Store) -> None:
    for name in range(30):
        store.write(f"a/{name}", b"")
    s3.reset()
    store.delete_many([f"a/{name}" for name in range(1000)])
    assert s3.counts() == {"POST": 1} and store.list() == {}


def test_large_files_go_up_in_parts(s3: S3Server, store: Store) -> None:
    content = os.urandom(1 << 20) * 120
    store.write("features/large", content)
    assert s3.counts()["PUT"] == 3 and s3.counts()["POST"] == 2, "three parts, begun and completed"
    assert store.read("features/large") == content


def test_a_folder_is_no_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Web consoles create folders as empty objects, and s3fs itself lists a folder that fills during the listing."""
    store.fs.call_s3("put_object", Bucket=BUCKET, Key=f"{store.root.partition('/')[2]}/metrics/", Body=b"")
    store.write("a/b", b"x")
    assert store.list() == {"a/b": 1} and store.list("metrics") == {}

    async def nothing_yet(*_: object, **__: object) -> list[object]:
        return []

    monkeypatch.setattr(store.fs, "_lsdir", nothing_yet)
    assert store.list("a") == {}


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (0, "")])
def test_a_stuttering_server_is_asked_again(s3: S3Server, store: Store, status: int, code: str) -> None:
    for attempt in ("a1", "a2"):
        s3.fail("any", 2, status=status, code=code)
        commit(store, attempt, [f"t-{attempt}"])
    s3.fail("any", 2, status=status, code=code)
    results = results_of(store)
    s3.fail("any", 2, status=status, code=code)
    assert results.sql("select count(*) from metrics").fetchall() == [(12,)] and not results.problems


def test_server_outage_names_the_store(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")  # the user's setting takes precedence
    store = Store(s3.new_url())
    s3.fail("any", 10_000)
    with pytest.raises(OSError, match="asked for by the test"):
        store.write("a", b"")
    s3.reset()
    assert store.list() == {}


def test_incomplete_uploads_are_removed(s3: S3Server, store: Store) -> None:
    bucket, _, prefix = store.root.partition("/")
    store.fs.call_s3("create_multipart_upload", Bucket=bucket, Key=f"{prefix}/features/half")
    store.fs.call_s3("create_multipart_upload", Bucket=bucket, Key="somebody/elses")
    (upload,) = store.unfinished_writes(older_than_s=3600)  # moto reports 2010 as the start of all uploads
    assert upload.startswith("features/half?uploadId=")
    store.remove_unfinished(upload)
    assert store.unfinished_writes(older_than_s=3600) == []
    assert len(store.fs.call_s3("list_multipart_uploads", Bucket=bucket)["Uploads"]) == 1, "not ours"


def test_no_such_bucket(s3: S3Server) -> None:
    with pytest.raises(StoreError, match=r"cannot read store 's3://nowhere/store'.*bucket 'nowhere' exists.*AWS_"):
        Store("s3://nowhere/store").check_readable()


def test_no_credentials(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = Store(f"s3://{BUCKET}/x")
    with pytest.raises(StoreError, match="credentials"):
        store.check_readable()
    with pytest.raises(OSError, match=rf"store s3://{BUCKET}/x: NoCredentialsError"):
        store.read("a")
