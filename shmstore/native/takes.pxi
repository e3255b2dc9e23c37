# A subscription's end: what `shmstore.ring.reader.Reader` does, and `shmstore.store.subscription` when it waits.

cdef class Takes:
    """The numbers of a `ring.Reader`, and its usual get and ack."""

    cdef Mapped mapped
    cdef int64_t ack_word, get_word
    cdef public int64_t get, ack, _seen, generation
    cdef public bint may_get, may_ack  # False: all is left to the caller
    cdef public int64_t due  # ns of the monotonic clock: an ack from then on is left to the caller; 0: none is for that
    cdef public bint interrupted  # by another thread or a handler: the wait is to end
    cdef int64_t wanted_word, state_word, heartbeat_word, paused_word
    cdef uint32_t* woken
    cdef int64_t short, looks, brief  # ns: after a wait shorter than that, how long to look before a sleep; after what a look again
    cdef bint hurried  # the last wait was that short
    cdef object segment, batch, freed
    cdef LogWindow window  # of the log, in a store that has one: what may be taken where the ring has moved on

    def __cinit__(self, views, int entry, *, ddl_isolation, log=None):
        self.mapped = views.native
        if not 0 <= entry < SUBSCRIPTIONS:
            raise ValueError(f"entry {entry}")
        self.get_word, self.ack_word = subscription_word(entry, "get"), subscription_word(entry, "ack")
        self.wanted_word, self.state_word = subscription_word(entry, "wanted"), subscription_word(entry, "state")
        self.heartbeat_word, self.paused_word = subscription_word(entry, "heartbeat_ms"), subscription_word(entry, "paused")
        self.woken = <uint32_t*>(self.mapped.words + <int64_t>subscription_word(entry, "woken"))

    def tune(self, segment, batch, freed, bint may_get, bint may_ack, double short, double looks, double brief):
        """Say what the batches are, a kind of Run of `segment`, what to call after an ack that the producer waits for, and which of the two
        have nothing unusual about them.

        After a wait of less than `short` seconds the next one looks for `looks` seconds before it sleeps, and after a look that found
        events in less than `brief`.
        """
        if not issubclass(batch, Run):
            raise TypeError(f"{batch!r} is no Run")
        self.segment, self.batch, self.freed, self.may_get, self.may_ack = segment, batch, freed, may_get, may_ack
        self.short, self.looks, self.brief = <int64_t>(short * 1e9), <int64_t>(looks * 1e9), <int64_t>(brief * 1e9)

    def try_get(self, limit_events):
        """As Reader.try_get."""
        cdef Mapped at = self.mapped
        cdef int64_t last = self._seen, get = self.get, limit
        cdef LogWindow window = self.window
        cdef Run run
        # A pause is ordered with nothing else: it holds from the next get on that sees it. Python documents what it means.
        if not self.may_get or at.words[self.paused_word]:
            return None
        if at.logged and get < look(at.words + FLOOR):  # what was seen has left the ring
            if window is None or limit_events is None or not window.first - 1 <= get < window.last:
                return None
            last = window.last  # where it ends within the limit, the Python code continues after it
        else:
            window = self.window = None
            if last <= get:
                self.look_at_put()
                last = self._seen
                if last <= get:
                    return None
            if at.logged and last - get > at.capacity:
                return None  # Python saw it in the log
        if limit_events is not None:
            try:
                limit = limit_events
            except OverflowError:
                return None
            if limit <= 0:
                return None
            if last - get > limit:
                last = get + limit
            elif window is not None and last - get < limit:
                return None
        run = <Run>new_object(self.batch, nothing)
        run._segment, run.mapped, run.generation, run.window = self.segment, at, self.generation, window
        run.first, run.last = get + 1, last
        publish(at.words + self.get_word, last)
        self.get = last
        return run

    def look_through(self, LogWindow window not None):
        """Take from `window` what follows, while the ring has that no longer."""
        self.window = window

    cdef int64_t look_at_put(self) noexcept:
        """The put cursor; what is behind it may be taken, but where it is out of bounds: then the long way must say so."""
        cdef int64_t put = look(self.mapped.words + PUT)
        # Unsigned: a forged put may be anything.
        if self.mapped.logged:
            if put > self.get >= look(self.mapped.words + FLOOR) and <uint64_t>put - <uint64_t>self.get <= <uint64_t>self.mapped.capacity:
                self._seen = put
        elif put > self.get and <uint64_t>put - <uint64_t>self.ack <= <uint64_t>self.mapped.capacity:
            self._seen = put
        return put

    def try_wait(self, limit_events, double seconds, double slice):
        """As Reader.try_wait.

        The order is that of Subscription._await, and so is what is looked at before each sleep of up to `slice` seconds: wanted,
        armed, heavy fence, put, the states. A handler of a signal may raise, interrupt the wait or close the subscription.
        """
        cdef Mapped at = self.mapped
        cdef int64_t* words = at.words
        cdef int64_t next = self.get + 1, began = clock_now(), now, until = began + <int64_t>(seconds * 1e9)
        if not self.may_get or at.words[self.paused_word] or limit_events is not None and limit_events < 1:
            return None
        if at.logged and look(words + PUT) >= next and self.get < look(words + FLOOR):
            return None  # there is something to read, in the log: no need to arm, which costs all processors a fence
        if self.hurried:  # the producer is in full flow
            if self.look_for(1, min(seconds, self.looks / 1e9)):
                self.hurried = clock_now() - began < self.brief
                return self.try_get(limit_events)
            self.hurried = False
        try:
            while True:
                publish(words + self.wanted_word, next)
                publish(words + ARMED, 1)
                settle_heavily(at.asymmetric)
                if self.look_at_put() >= next or look(words + self.state_word) != ACTIVE or look(words + STATE) != LIVE:
                    break
                PyErr_CheckSignals()
                now = clock_now()
                if self.interrupted or not self.may_get or now >= until:
                    break
                publish(words + self.heartbeat_word, boot_now() // 1000000)
                with nogil:
                    sleep_on(self.woken, min(until, now + <int64_t>(slice * 1e9)))
                if self.look_at_put() >= next:  # the usual end of a wait: nothing to arm again
                    break
        finally:
            publish(words + self.wanted_word, DISARM)
        self.hurried = self._seen >= next and clock_now() - began < self.short
        return self.try_get(limit_events)

    def look_for(self, int64_t n, double seconds):
        """As Reader.look_for."""
        cdef const int64_t* put = self.mapped.words + PUT
        cdef int64_t wanted = self.get + n, until
        cdef int k
        with nogil:
            until = clock_now() + <int64_t>(seconds * 1e9)
            while True:
                for k in range(50):
                    if look(put) >= wanted:
                        break
                    rest_a_moment()
                else:
                    if clock_now() < until:
                        continue
                break
        return look(put) >= wanted

    def try_ack(self, what):
        """As Reader.try_ack."""
        cdef Mapped at = self.mapped
        cdef Run run
        cdef int64_t last
        if not self.may_ack or not isinstance(what, Run):
            return False
        run = what
        last = run.last
        if run.generation != self.generation or last < run.first or not self.ack < last <= self.get:
            return False
        if look(at.words + OVERSIZED) > self.ack or self.due and coarse_now() >= self.due:
            return False
        publish(at.words + self.ack_word, last)
        self.ack = last
        settle(at.asymmetric)
        if look(at.words + ACK_WANTED) <= last:
            self.freed()
        return True


def sleep(size_t flag, double seconds):
    """Wait as `memory.semaphores.Condition` does, on the flag at that address."""
    cdef int64_t until = clock_now() + <int64_t>(seconds * 1e9)
    with nogil:
        sleep_on(<uint32_t*>flag, until)
