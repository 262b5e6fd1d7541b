from tests.executor.conftest import world

__all__ = ["world"]
