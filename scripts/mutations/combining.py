"""Publishers that publish for each other."""

from scripts.mutations.mutant import Mutant

MUTANTS = (
    Mutant(
        "combining: a request is applied once",
        "sparklog/metadata/model/publishers.py",
        "        and (action.nonce or _was_remembered(publishers, action.publisher))\n",
        "        and False\n",
        "tests/metadata/test_settled_requests.py",
    ),
    Mutant(
        "combining: who finds no room to be remembered publishes all the same",
        "sparklog/metadata/combining.py",
        "        if can_settle(image.publishers, self.publisher):\n",
        "        if True:\n",
        "tests/metadata/test_request_clones.py",
    ),
    Mutant(
        "combining: who is forgotten by a commit makes no room in it",
        "sparklog/metadata/others.py",
        "if not can_settle(remembered, ticket.publisher):",
        "if not can_settle(draft.publishers, ticket.publisher):",
        "tests/metadata/test_request_clones.py",
    ),
    Mutant(
        "combining: a request is applied within its window only",
        "sparklog/metadata/model/publishers.py",
        "        if not action.base < commit <= last:\n",
        "        if False:\n",
        "tests/metadata/test_publishers.py",
    ),
    Mutant(
        "combining: an image remembers what has been settled for the window",
        "sparklog/metadata/model/publishers.py",
        "        if commit <= last_commit_for(state.commit):\n",
        "        if commit <= state.commit + 1:\n",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: a request beyond its window is looked for before it is done again",
        "sparklog/metadata/posted.py",
        "    if not request.is_settled(image) and remembers_all_of(request.base, image.commit):\n",
        "    if not request.is_settled(image):\n",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: clones of a process do not take each other's success",
        "sparklog/metadata/posted.py",
        "isinstance(action, RequestApplied) and action.nonce == self.nonce",
        "isinstance(action, RequestApplied) and action.publisher == self.publisher",
        "tests/metadata/test_request_clones.py",
    ),
    Mutant(
        "combining: a clone does not post a number that is settled",
        "sparklog/metadata/combining.py",
        "        if image.has_settled(self.publisher, self.sequence + 1):\n",
        "        if False:\n",
        "tests/metadata/test_request_clones.py",
    ),
    Mutant(
        "combining: who posts again has given up the request before",
        "sparklog/metadata/combining.py",
        "    return [ticket for ticket in tickets if ticket.sequence == newest[ticket.publisher]]\n",
        "    return list(tickets)\n",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: a call with nothing to do takes back what was given up",
        "sparklog/metadata/combining.py",
        "            own = tuple(one.plan(image))\n",
        "            own = tuple(one.plan(image))\n"
        "            if not own:\n"
        "                self._open = None\n"
        "                return Settled(image=image, commit=image.commit, actions=(), made=False)\n",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: any error while a request is out leaves it unresolved",
        "sparklog/metadata/combining.py",
        "        except Exception as error:\n",
        "        except StorageError as error:\n",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: a request that was given up cannot be applied later",
        "sparklog/metadata/combining.py",
        "        return (self._open.marker(),)\n",
        "        return ()\n",
        "tests/metadata/test_combining_errors.py",
    ),
    Mutant(
        "combining: old requests are not applied",
        "sparklog/metadata/requests.py",
        "        oldest_ms = self._store.storage_now_ms(self._clock.now_ms()) - MAX_AGE_MS\n",
        "        oldest_ms = 0\n",
        "tests/metadata/test_combining.py",
    ),
)
