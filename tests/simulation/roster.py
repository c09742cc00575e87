"""Who is there, by the journal's own words: what checks read that do not ask the core."""

from __future__ import annotations

from dataclasses import dataclass, field

from streams.core.events import Event, MemberDraining, MemberJoined, MemberLeft


@dataclass(slots=True)
class Present:
    """A member that has joined and not left."""

    group: str
    instance: str
    watermarks: dict[str, int]
    draining: bool = False


@dataclass(slots=True)
class Roster:
    """Of one partition. `instances`: the process that each member was a connection of that ever joined."""

    members: dict[str, Present] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """The next event."""
        match event:
            case MemberJoined():
                self.members[event.member] = Present(event.group, event.instance, event.watermarks)
                self.instances[event.member] = event.instance
            case MemberLeft():
                self.members.pop(event.member, None)
            case MemberDraining():
                self.members[event.member].draining = True
            case _:
                pass

    def takes(self, member: str | None) -> bool:
        """It is there, and does not drain."""
        present = self.members.get(member or "")
        return present is not None and not present.draining

    def another(self, group: str, but: set[str]) -> bool:
        """Whether this group has a member that takes runs, beside these."""
        return any(
            present.group == group and not present.draining and member not in but
            for member, present in self.members.items()
        )

    def has(self, instance: str) -> bool:
        """Whether a connection of this process is there."""
        return any(present.instance == instance for present in self.members.values())
