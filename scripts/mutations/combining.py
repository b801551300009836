"""Publishers that publish for each other."""

from scripts.mutations.mutant import Mutant

CONDITIONS = "sparklog/metadata/model/conditions.py"
OF_CONDITIONS = "tests/metadata/test_conditions.py"
OF_BROKERS = "tests/metadata/test_broker_requests.py"
OF_STRANGE_REQUESTS = "tests/metadata/test_strange_requests.py"
BUNDLE = "sparklog_server/publish/bundle_writer.py"
OF_BUNDLES = "tests/server/publish/test_bundles_by_others.py"

MUTANTS = (
    Mutant(
        "a publish waits for a moment at most to know who waits",
        "sparklog/metadata/requests.py",
        "self._store.list(REQUESTS, within_ms=LOOK_MS)",
        "self._store.list(REQUESTS)",
        "tests/metadata/test_combining_errors.py",
    ),
    Mutant(
        "a look at a store that hangs is given up in time",
        "sparklog/storage/s3_client.py",
        "            return answer.result(within_ms / 1000)\n",
        "            return answer.result()\n",
        "tests/storage/test_s3_patience.py",
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
        "sparklog/metadata/combining.py",
        "if not can_settle(remembered, ticket.publisher):",
        "if not can_settle(draft.publishers, ticket.publisher):",
        "tests/metadata/test_request_clones.py",
    ),
    Mutant(
        "combining: an image remembers what has been settled for the window",
        "sparklog/metadata/model/writers.py",
        "        if commit <= last_commit_for(state.commit):\n",
        "        if commit <= state.commit + 1:\n",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: a request beyond its window is looked for before it is done again",
        "sparklog/metadata/requests.py",
        "    if not request.is_settled(image) and remembers_all_of(request.base, image.commit):\n",
        "    if not request.is_settled(image):\n",
        "tests/metadata/test_request_window.py",
    ),
    Mutant(
        "combining: clones of a process do not take each other's success",
        "sparklog/metadata/requests.py",
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
        "sparklog/metadata/requests.py",
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
        "                return Settled(image=image, commit=image.commit, actions=(), made=False, "
        "planned_against=lambda: image)\n",
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
    Mutant(
        "combining: nothing of a broker whose registration is over is planned",
        CONDITIONS,
        "    validate_broker(image, node_id, broker_epoch)\n",
        "",
        OF_CONDITIONS,
    ),
    Mutant(
        "combining: a broker's part holds if it continues its producer",
        CONDITIONS,
        "        if check is SequenceCheck.NEXT:\n",
        "        if True:\n",
        OF_CONDITIONS,
    ),
    Mutant(
        "combining: a broker's part continues those before it",
        CONDITIONS,
        "            self.producers[key] = ProducerState(draft.producer_epoch, last, NO_OFFSET)\n",
        "",
        OF_CONDITIONS,
    ),
    Mutant(
        "combining: a part that is left out takes those behind it along",
        CONDITIONS,
        "            self.broken.add(place)\n",
        "            pass\n",
        OF_CONDITIONS,
    ),
    Mutant(
        "combining: what was left out is judged after all that came before it in its commit",
        "sparklog/metadata/requests.py",
        "    before = request.actions_before(known[commit][1])\n",
        "    before = ()\n",
        OF_BROKERS,
    ),
    Mutant(
        "combining: what was left out is judged as it was then",
        "sparklog/metadata/combining.py",
        "            planned_against=lambda: image_before(",
        "            planned_against=lambda: image or image_before(",
        OF_BROKERS,
    ),
    Mutant(
        "combining: a broker posts after races that were dear, or many",
        "sparklog/metadata/combining.py",
        "        if races >= shared.races or took_ms >= DEAR_LOSS_MS:\n",
        "        if took_ms >= DEAR_LOSS_MS:\n",
        OF_BROKERS,
    ),
    Mutant(
        "combining: where losers wait nobody races twice",
        "sparklog/metadata/combining.py",
        "        if races >= shared.races or took_ms >= DEAR_LOSS_MS:\n",
        "        if races >= shared.races:\n",
        OF_BROKERS,
    ),
    Mutant(
        "combining: a bundle that others published is judged by the image that they had",
        BUNDLE,
        "        elif image is not self._last:\n",
        "        elif False:\n",
        OF_BUNDLES,
    ),
    Mutant(
        "combining: a producer that was forgotten is judged by what it has sent, not by when it was appended",
        BUNDLE,
        "            sent_timestamp_ms=None if is_stamped else first.encoded.max_timestamp_ms,\n",
        "            sent_timestamp_ms=first.encoded.max_timestamp_ms,\n",
        OF_BUNDLES,
    ),
    Mutant(
        "combining: others' requests alone do not make a broker post",
        "sparklog/metadata/combining.py",
        "        return self.is_there and (shared.races == 1 or self._is_before(self._dear_until_ms))\n",
        "        return self.is_there\n",
        OF_BROKERS,
    ),
    Mutant(
        "combining: a broker beside which others starve joins them",
        "sparklog/metadata/combining.py",
        "            if any(self._is_starving(ticket) for ticket in waiting):\n",
        "            if False:\n",
        OF_BROKERS,
    ),
    Mutant(
        "combining: a broker that loses to a queue joins it",
        "sparklog/metadata/combining.py",
        "                if has_lost:\n",
        "                if False:\n",
        OF_BROKERS,
    ),
    Mutant(
        "combining: many that died together hold nobody up for long",
        "sparklog/metadata/combining.py",
        "itertools.islice(ahead, MOST_SILENT)",
        "ahead",
        "tests/metadata/test_settled_requests.py",
    ),
    Mutant(
        "combining: a request of a commit that is not there yet spoils nobody's",
        "sparklog/metadata/combining.py",
        "            if not known.posted.may_be_in(commit) or",
        "            if",
        OF_STRANGE_REQUESTS,
    ),
    Mutant(
        "combining: requests are read as far as one commit takes them",
        "sparklog/metadata/combining.py",
        "            if unread and size > MAX_COMBINED_BYTES:\n",
        "            if False:\n",
        OF_STRANGE_REQUESTS,
    ),
    Mutant(
        "combining: a store that fails once all is published makes no error of it",
        "sparklog/metadata/requests.py",
        "    except SparklogError as error:\n",
        "    except KeyError as error:\n",
        OF_BROKERS,
    ),
    Mutant(
        "combining: a LIST that fails keeps nobody from publishing",
        "sparklog/metadata/combining.py",
        '        except StorageError as error:\n            _log.info("nobody is known',
        '        except KeyError as error:\n            _log.info("nobody is known',
        "tests/metadata/test_combining_errors.py",
    ),
    Mutant(
        "combining: after a LIST that failed the next is a while off",
        "sparklog/metadata/combining.py",
        "        self._blind_until_ms = self._clock.monotonic_ms() + BLIND_MS\n",
        "        pass\n",
        "tests/metadata/test_combining_errors.py",
    ),
)
