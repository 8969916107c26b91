"""Native tests share one folder of built libraries and run on one thread."""

from tests.support.native_fixtures import built_libraries, one_thread

__all__ = ["built_libraries", "one_thread"]
