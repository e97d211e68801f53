"""What the user asks of a plan beside the recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lcplan.base.diagnostics import Diagnostic
    from lcplan.node.model import Topology
    from lcplan.plan.model import Launch, Snapshot
    from lcplan.recipe.load import Recipes


@dataclass(frozen=True)
class Wanted:
    """What the user asks of a plan beside the recipes. Selectors are texts of --target, --exclude and --replace.

    `budget` is the text of a time that the plan may take. `what_if` says in words which machine takes the place of the
    campaign's nodes, "" for these themselves; `topologies` are those that are known, by node. `thorough` asks for every
    check even when there is nothing to do.
    """

    runtime: str | None = None
    target: Sequence[str] = ()
    exclude: Sequence[str] = ()
    replace: Sequence[str] = ()
    capacity: Callable[[Recipes, Sequence[Launch], Snapshot, Set[str]], None] | None = None
    lint: Callable[[Recipes, Sequence[Launch]], Sequence[Diagnostic]] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    budget: str | None = None
    what_if: str = ""
    thorough: bool = False
    topologies: Mapping[str, Topology] = field(default_factory=dict)
