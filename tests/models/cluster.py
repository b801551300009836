"""Several brokers over one root: who leads, who controls, and what one that is deposed can still do.

All that brokers agree on is the image. Each acts by the one that it has seen, of any age: it accepts records
for partitions that it takes itself for the leader of, publishes them in groups later, and answers reads of
coordinators (the offsets of groups) from memory. A commit is computed from the newest image, or does not
happen; so a step that commits looks at the newest, and what matters is what it compares there. Controllers
take themselves for the one until they see otherwise: they fence brokers, whether those are dead, slow or
well, and move leaderships. A broker that sees that it is fenced registers again; and one that is started anew
may take the place of an older process of its node, which does not know of it and goes on. What nobody leads
then may be led with the same commit.

Promises:
    two leaders      in an epoch of a partition one registration acts: who was elected in it
    two controllers  a controller epoch is one registration's, and nothing is done under an older one
    falls            leader and controller epochs only grow
    fenced           a registration that is fenced publishes nothing
    deposed          what was accepted in an epoch is not published in a later one
    lost, doubled    what was acknowledged is in the log; a record is there once; and one whose client was
                     told that the leader is another (who will send it there) never comes
    refused          a part is not refused for another's sake
    after            nobody answers for a role after the image that took it away
    stale            nor on an image that was not the newest within a bound, by true time
    forgets          an answer holds all that was committed before the image that it is given by

So a group's offsets are served by one coordinator as of each image; two may answer at the same time for at
most the bound, and what the older one says is then as of its image, while only the newer one's commits apply.

Bounds: records, moves of controllers, elections, registrations. Images are too old after one tick.
Left out: which broker is dead (liveness.py; here anybody may be fenced at any time), lost races and commits
without an answer (combining.py, hours_on_object_store.py: here a commit is one step), writers that are no
brokers, which need no role.
"""

from tests.models.bits import bit
from tests.models.cluster_world import NOBODY, NONE, Broker, ClusterWorld, Image, Part, State
from tests.models.explorer import Next, Violation, replaced, step, world

LOG, MODEL = "sparklog.metadata.log:MetadataLog", "sparklog.metadata.model"
MEMBERSHIP = "sparklog_server.cluster.membership:Membership"


class Cluster(ClusterWorld):
    """See the module's docstring."""

    # --- registrations ------------------------------------------------------------------------------------

    @step("looks", at="up", code=f"{LOG}.refresh")
    def look(self, s: State, i: int, p: Broker) -> Next:
        if p.image != s.image or p.age or p.awake:
            yield "", self.shown(s, i, p)

    @step("registers", at="up", code=(f"{MODEL}.registry:join_broker", f"{MODEL}.registry:fence_broker"))
    def register(self, s: State, i: int, p: Broker) -> Next:
        """In the place of an older one of its node, which it has reason to take for dead. What nobody leads
        then somebody may lead with the same commit, in the controller's name.
        """
        if not p.joins or self.is_registered(p.image, p):
            return
        joined = p._replace(epoch=s.image.registrations + 1, control=NONE, joins=p.joins - 1)
        yield f" with epoch {joined.epoch}", self.entered(s, i, joined, self.replaced_by(s.image, joined))
        if s.image.controller in (NOBODY, p.node):
            return
        for node, one in enumerate(s.image.registered):
            if one != NONE or node == p.node:
                image = self.led_instead(self.replaced_by(s.image, joined), node)
                yield (
                    f" with epoch {joined.epoch}, and broker {node} leads",
                    self.entered(s, i, joined, image),
                )

    def replaced_by(self, image: Image, joined: Broker) -> Image:
        """The registration of a node is this one."""
        if image.registered[joined.node] != NONE:
            image = self.fenced(image, joined.node)
        registered = replaced(image.registered, joined.node, joined.epoch)
        return image._replace(registered=registered, registrations=joined.epoch)

    def led_instead(self, image: Image, node: int) -> Image:
        """What nobody leads, one leads."""
        leaders = image.leaders
        for q, (led, epoch) in enumerate(leaders):
            if led == NOBODY:
                leaders = replaced(leaders, q, (node, epoch + self.rules.epoch_rises))
        return image._replace(leaders=leaders)

    def entered(self, s: State, i: int, joined: Broker, image: Image) -> State | Violation:
        after = self.committed(s, image)
        return after if isinstance(after, Violation) else self.shown(after, i, joined)

    # --- controllers --------------------------------------------------------------------------------------

    @step("has itself elected controller", at="up", code=f"{MODEL}.registry:elect_controller")
    def elect(self, s: State, i: int, p: Broker) -> Next:
        if not s.elections or not self.is_registered(p.image, p) or p.control == p.image.controller_epoch:
            return
        if self.rules.checks_registration and not self.is_registered(s.image, p):
            return
        epoch = (s.image if self.rules.elected_once else p.image).controller_epoch + 1
        if epoch < len(s.controls):
            yield f" in epoch {epoch}", Violation(f"two controllers: in controller epoch {epoch}")
            return
        after = self.committed(s, s.image._replace(controller=p.node, controller_epoch=epoch))
        if not isinstance(after, Violation):
            after = after._replace(elections=s.elections - 1, controls=(*s.controls, p.epoch))
            after = self.shown(after, i, p._replace(control=epoch))
        yield f" in epoch {epoch}", after

    def may_control(self, s: State, p: Broker) -> bool | Violation:
        """A controller's action applies in its own epoch, while its registration stands."""
        newest = s.image.controller == p.node and s.image.controller_epoch == p.control
        if self.rules.checks_controller and not newest:
            return False
        if self.rules.checks_registration and not self.is_registered(s.image, p):
            return False
        if p.control < s.image.controller_epoch:
            return Violation(f"two controllers: {p.control} acts in {s.image.controller_epoch}")
        return True

    @step("fences", at="up", code=f"{MODEL}.registry:fence_broker")
    def fence(self, s: State, i: int, p: Broker) -> Next:
        if not s.moves or p.control == NONE:
            return
        for node, epoch in enumerate(s.image.registered):
            if node == p.node or epoch == NONE:
                continue
            may = self.may_control(s, p)
            if isinstance(may, Violation):
                yield f" broker {node}", may
            elif may:
                after = self.committed(s, self.fenced(s.image, node))
                if not isinstance(after, Violation):
                    after = self.shown(after._replace(moves=s.moves - 1), i, p)
                yield f" broker {node}", after

    @step("moves a partition", at="up", code=f"{MODEL}.registry:elect_leaders")
    def move(self, s: State, i: int, p: Broker) -> Next:
        if not s.moves or p.control == NONE:
            return
        for q, (led, old) in enumerate(s.image.leaders):
            for node, registration in enumerate(s.image.registered):
                if node == led or registration == NONE:
                    continue
                may = self.may_control(s, p)
                if isinstance(may, Violation):
                    yield "", may
                    continue
                if not may:
                    continue
                before = old if self.rules.epoch_of_newest else p.image.leaders[q][1]
                epoch = before + self.rules.epoch_rises
                leaders = replaced(s.image.leaders, q, (node, epoch))
                after = self.committed(s, s.image._replace(leaders=leaders))
                if not isinstance(after, Violation):
                    after = self.shown(after._replace(moves=s.moves - 1), i, p)
                yield f" {q} from {'nobody' if led == NOBODY else led} to {node}, epoch {epoch}", after

    # --- records ------------------------------------------------------------------------------------------

    @step("accepts", at="up", code="sparklog_server.publish.publisher:Publisher.submit")
    def accept(self, s: State, i: int, p: Broker) -> Next:
        if s.sent == self.records:
            return
        for q in range(self.partitions):
            if self.leads(p.image, p, q) and not any(part[1] == q for part in p.parts):
                part = (s.sent, q, p.image.leaders[q][1])
                yield (
                    f" record {s.sent} for {q} in leader epoch {part[2]}",
                    self.after(s._replace(sent=s.sent + 1), i, p._replace(parts=(*p.parts, part))),
                )

    @step("publishes", at="up", code=(f"{MODEL}.registry:act_as_broker", f"{MODEL}.extents:append_extents"))
    def publish(self, s: State, i: int, p: Broker) -> Next:
        """Everything that it has accepted, in one commit."""
        if not p.parts:
            return
        taken = tuple(part for part in p.parts if self.may_append(s, p, part))
        lost = tuple(part for part in p.parts if part not in taken)
        if lost and not self.rules.drops_lost_parts:
            taken = p.parts if taken else ()
        if lost and not self.rules.keeps_the_rest:
            if taken:
                yield "", Violation(f"refused: record {taken[0][0]}")
            taken = ()
        after = self.appended(s, p, taken)
        if isinstance(after, Violation):
            yield f" {numbers_of(taken)}", after
            return
        told = taken if self.rules.answers_each_part or not taken else p.parts
        acknowledged = sum(bit(record) for record, _, _ in told)
        denied = sum(bit(part[0]) for part in p.parts if part not in told)
        after = after._replace(acknowledged=s.acknowledged | acknowledged, denied=s.denied | denied)
        checked = self.checked(after)
        if not isinstance(checked, Violation):
            checked = self.shown(checked, i, self.remembering(p._replace(parts=()), taken))
        yield f" {numbers_of(taken)}, and refuses {numbers_of(lost)}", checked

    @step("changes a topic", at="up", code=f"{MODEL}.registry:act_as_broker")
    def administer(self, s: State, i: int, p: Broker) -> Next:
        """What any broker may do that is registered. It changes nothing that matters here."""
        is_deposed = self.is_registered(p.image, p) and not self.is_registered(s.image, p)
        if is_deposed and not self.rules.checks_registration:
            yield "", Violation(f"fenced: registration {p.epoch} changes a topic")

    def may_append(self, s: State, p: Broker, part: Part) -> bool:
        rules, (leader, epoch) = self.rules, s.image.leaders[part[1]]
        if rules.checks_registration and not self.is_registered(s.image, p):
            return False
        if rules.checks_leader and leader != p.node:
            return False
        return not rules.checks_epoch or epoch == part[2]

    def remembering(self, p: Broker, taken: tuple[Part, ...]) -> Broker:
        memory = p.memory
        for record, q, epoch in taken:
            loaded, records = memory[q]
            if self.reads and loaded == epoch:
                memory = replaced(memory, q, (loaded, records | bit(record)))
        return p._replace(memory=memory)

    # --- coordinators -------------------------------------------------------------------------------------

    @step("loads", at="up", code="sparklog_server.coordination.shards:Shards.follow")
    def load(self, s: State, i: int, p: Broker) -> Next:
        for q, (_, epoch) in enumerate(p.image.leaders):
            loaded, _ = p.memory[q]
            again = loaded != epoch if self.rules.loads_each_epoch else loaded == NONE
            if self.leads(p.image, p, q) and again:
                records = self.known_of(p.image.logs[q]) if self.rules.loads else 0
                q_memory = replaced(p.memory, q, (epoch, records))
                yield f" {q} for leader epoch {epoch}", self.after(s, i, p._replace(memory=q_memory))

    @step("answers", at="up", code=f"{MEMBERSHIP}.is_held")
    def answer(self, s: State, i: int, p: Broker) -> Next:
        """An OffsetFetch, or what else only who has the role may say. It changes nothing."""
        rules = self.rules
        for q, (epoch, records) in enumerate(p.memory):
            if epoch == NONE:
                continue
            led = self.leads(p.image, p, q)
            in_epoch = p.image.leaders[q][1] == epoch
            if rules.resigns_at_image and not (led and (in_epoch or not rules.loads_each_epoch)):
                continue
            if rules.bounds_age and (p.age if rules.by_boot_time else p.awake):
                continue
            if not led:
                yield f" for {q}", Violation("after: the image that it has seen took the role away")
            elif p.age and not self.leads(s.image, p, q):
                yield f" for {q}", Violation("stale: another may have had the role for long")
            elif self.known_of(p.image.logs[q]) & ~records:
                yield f" for {q}", Violation("forgets: what was committed before it got the role")
            else:
                wrong = self.wrong_leader(s, p, q, p.image.leaders[q][1])
                if wrong is not None:
                    yield f" for {q}", wrong

    # --- time ---------------------------------------------------------------------------------------------

    @world("time passes")
    def tick(self, s: State) -> Next:
        if not all(p.age and p.awake for p in s.processes):
            yield "", s._replace(processes=tuple(p._replace(age=1, awake=1) for p in s.processes))

    @world("a machine is suspended, with the clock that does not count it")
    def sleep(self, s: State) -> Next:
        for i, p in enumerate(s.processes):
            if not p.age:
                yield f", that of {self.process_names[i]}", self.after(s, i, p._replace(age=1))


def numbers_of(parts: tuple[Part, ...]) -> list[int]:
    return [record for record, _, _ in parts]
