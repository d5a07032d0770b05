"""Population based training."""

from shoal.search.pbt.searcher import PBT

__all__ = ["PBT"]
