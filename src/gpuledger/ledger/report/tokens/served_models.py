"""Which model a pod serves: by its tokens, else by a pod label, else by other pods of its controller."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpuledger.ledger.report.fleet.inventory import Inventory, ScrapedPod
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.tokens.token_rises import Pod, TokenName

# The served model of a pod with several models: energy of one process cannot be split between them.
SEVERAL = "(several)"
PREFILL, DECODE = "prefill", "decode"


class ServedModels:
    """The models of the pods of a fleet, and their roles in disaggregated serving."""

    def __init__(self, inventory: Inventory, model_label: str, role_label: str) -> None:
        self._inventory = inventory
        self._model_label, self._role_label = model_label, role_label
        self.names: dict[Pod, set[str]] = defaultdict(set)
        self._of_controllers: dict[tuple[str, str, str], set[str]] = defaultdict(set)

    def learn(self, names: Iterable[TokenName]) -> None:
        """Learn the models of the pods from all their counters, before the first report row is named."""
        for name in names:
            if name.pod:
                self.names[name.namespace, name.pod].add(name.model)
        for (namespace, pod), models in self.names.items():
            controller = self._controller(namespace, self._pod(namespace, pod))
            if controller and len(models) == 1:
                self._of_controllers[controller] |= models

    def of_party(self, party: Party) -> str:
        """The model of a party; empty if none is known."""
        owner = party.owner
        return self.of_pod((owner.namespace, owner.pod)) if owner.pod else ""

    def of_pod(self, pod: Pod) -> str:
        """The model of a pod; SEVERAL if it has more than one, empty if none is known."""
        models = self.names.get(pod, set())
        if len(models) > 1:
            return SEVERAL
        if models:
            return next(iter(models))
        known = self._pod(*pod)
        if label := dict(known.labels).get(self._model_label):
            return label
        controller = self._controller(pod[0], known)
        others = self._of_controllers.get(controller, set()) if controller else set()
        return next(iter(others)) if len(others) == 1 else ""

    def role(self, pod: Pod) -> str:
        """The role of a pod: PREFILL, DECODE, or empty."""
        role = dict(self._pod(*pod).labels).get(self._role_label, "")
        return role if role in (PREFILL, DECODE) else ""

    def _pod(self, namespace: str, pod: str) -> ScrapedPod:
        return self._inventory.pods.get((namespace, pod), ScrapedPod())

    def _controller(self, namespace: str, pod: ScrapedPod) -> tuple[str, str, str] | None:
        name = pod.facts.get("controller", "")
        return (namespace, pod.facts.get("controller_kind", ""), name) if name else None
