"""Reading existing launch commands: shell texts, compose and Kubernetes files, running containers."""

from lcplan.engine.importer.imported import Imported
from lcplan.engine.importer.read import read

__all__ = ["Imported", "read"]
