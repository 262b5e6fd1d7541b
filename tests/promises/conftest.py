from tests.executor.conftest import _brisk_upkeep, world

__all__ = ["_brisk_upkeep", "world"]
