"""The oldest name of platoon.param_sync."""
from platoon.param_sync import ASGD, EASGD, ParamSyncRule

__all__ = ["ASGD", "EASGD", "ParamSyncRule"]
