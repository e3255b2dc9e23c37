# The producer's end: what `shmstore.ring.writer.Writer` does.

cdef inline void write(Mapped at, int64_t i, bytes payload, int64_t size, int64_t end, int64_t rows) noexcept:
    """Write payload, end, rows and slot of an event of one row, at slot `i`, where no reader looks yet; it ends at `end`."""
    cdef Slot* slot = at.slots + i
    memcpy(at.arena + (end - size) % at.arena_size, PyBytes_AS_STRING(payload), size)
    at.ends[i] = end
    at.rows[i] = rows
    memset(slot, 0, sizeof(Slot))
    slot.size = <uint32_t>size
    slot.rows = 1


cdef class Puts:
    """The numbers of a `ring.Writer`, and its usual put."""

    cdef Mapped mapped
    cdef public int64_t put, end, rows, _limit_sequence, _limit_end, _floor
    cdef int64_t limit
    cdef public bint may_put  # False: all is left to the caller

    def __cinit__(self, views):
        self.mapped, self.limit = views.native, min(views.limit, views.arena_size)

    def try_put(self, events):
        """As Writer.try_put."""
        cdef Mapped at = self.mapped
        cdef int64_t n = 1, total = 0, size, end, i, k
        cdef object payload
        if not self.may_put:
            return None
        if PyBytes_CheckExact(events):
            total = size = PyBytes_GET_SIZE(events)
            if size == 0:
                return None
        elif PyList_CheckExact(events):
            n = PyList_GET_SIZE(events)
            if not 0 < n <= at.capacity:
                return None
            for k in range(n):
                payload = <object>PyList_GET_ITEM(events, k)
                if not PyBytes_CheckExact(payload):
                    return None
                size = PyBytes_GET_SIZE(payload)
                if size == 0:
                    return None
                total += size
                if total > self.limit:
                    return None
        else:
            return None
        # self.end is 0 to 2**62, or it would not have been taken over from the segment.
        if total > self.limit or total > UINT32_MAX or self.end < 0 or not self.fits(n, total):
            return None
        self.announce(self.end + total)
        i = (self.put + 1) & at.mask
        if n == 1 and PyBytes_CheckExact(events):
            write(at, i, events, total, self.end + total, self.rows + 1)
        else:
            end = self.end
            for k in range(n):
                payload = <object>PyList_GET_ITEM(events, k)
                size = PyBytes_GET_SIZE(payload)
                end += size
                write(at, i + k, payload, size, end, self.rows + k + 1)
        return self.published(n, self.end + total, self.rows + n)

    def try_put_encoded(self, blob, slots):
        """As Writer.try_put_encoded."""
        cdef Py_buffer bytes_, records
        cdef int64_t put
        if not self.may_put or slots.dtype != SLOT:
            return None
        try:
            PyObject_GetBuffer(blob, &bytes_, PyBUF_SIMPLE)
        except BufferError:
            return None
        try:
            PyObject_GetBuffer(slots, &records, PyBUF_SIMPLE)
        except (BufferError, ValueError):
            PyBuffer_Release(&bytes_)
            return None
        try:
            put = self.publish_encoded(<const uint8_t*>bytes_.buf, bytes_.len, <const Slot*>records.buf, records.len)
            return None if put < 0 else put
        finally:
            PyBuffer_Release(&records)
            PyBuffer_Release(&bytes_)

    cdef int64_t publish_encoded(self, const uint8_t* blob, int64_t size, const Slot* slots, int64_t length) noexcept:
        """The last sequence; -1 where nothing was written."""
        cdef Mapped at = self.mapped
        cdef int64_t n = length // <int64_t>sizeof(Slot), total = 0, end = self.end, rows = self.rows, i, k
        cdef int64_t* ends
        cdef int64_t* sums
        if not 0 < n <= at.capacity or size > self.limit or end < 0:
            return -1
        for k in range(n):
            if slots[k].size == 0:
                return -1
            total += slots[k].size
        if total != size or not self.fits(n, size):
            return -1
        i = (self.put + 1) & at.mask
        self.announce(end + size)
        memcpy(at.slots + i, slots, length)
        memcpy(at.arena + end % at.arena_size, blob, size)
        ends, sums = at.ends + i, at.rows + i
        for k in range(n):  # sums in registers: through memory each would wait for the one before
            end += slots[k].size
            rows += slots[k].rows
            ends[k], sums[k] = end, rows
        return self.published(n, end, rows)

    cdef void announce(self, int64_t end) noexcept:
        """As Writer._announce."""
        cdef int64_t* reach = self.mapped.words + REACH
        if end > reach[0]:
            publish(reach, end)
            before_writes()

    cdef bint fits(self, int64_t n, int64_t size) noexcept:
        """As Writer.fits, after a Writer.refresh where the space known of is too small; then no space is wanted any more.

        False, too, where the store was removed.
        """
        if look(self.mapped.words + STATE) != LIVE:
            return False
        if n <= self._limit_sequence - self.put and self.end + size <= self._limit_end:
            return True
        if not (self.spare(n, size) if self.mapped.logged else self.refresh()) or n > self._limit_sequence - self.put or self.end + size > self._limit_end:
            return False
        publish(self.mapped.words + ACK_WANTED, DISARM)
        return True

    cdef bint refresh(self) noexcept:
        """As Writer.refresh, in its order: floor, full fence, look again. False: that one must say what is wrong."""
        cdef Mapped at = self.mapped
        cdef int64_t* words = at.words
        cdef int64_t floor, acked
        if self._limit_sequence < -1 or not self.slowest(&floor):  # closed, or damaged
            return False
        floor = max(self._floor, floor)
        publish(words + FLOOR, floor)
        settle(False)
        if not self.slowest(&acked):
            return False
        floor = max(self._floor, min(floor, acked))
        self._floor = floor
        publish(words + FLOOR, floor)
        acked = at.ends[floor & at.mask]
        if not self.put - at.capacity <= floor <= self.put or acked > self.end:
            return False
        self._limit_sequence = min(floor, LAST_SEQUENCE - at.capacity) + at.capacity
        self._limit_end = acked + self.limit
        return True

    cdef bint spare(self, int64_t n, int64_t size) noexcept:
        """As Writer.refresh in a store with a log: give up what the log has, but no more than half of the ring, or what `n` events need.

        In its order: floor, full fence, and only then is anything written over. False as in `refresh`.
        """
        cdef Mapped at = self.mapped
        cdef int64_t* words = at.words
        cdef int64_t logged = look(words + FIRST_ACK), floor
        if self._limit_sequence < -1 or logged > self.put or self._floor < self.put - at.capacity or self._floor > self.put:
            return False
        floor = max(self.put - at.capacity // 2, self.ended(self.end - self.limit // 2))
        floor = max(floor, max(self.put + n - at.capacity, self.ended(self.end + size - self.limit)))
        floor = max(self._floor, min(floor, logged))
        if floor < self.put - at.capacity or at.ends[floor & at.mask] > self.end:
            return False
        if floor != self._floor:
            self._floor = floor
            publish(words + FLOOR, floor)
            settle(False)  # a reader that finds its copy above the floor has read it before anything of it is written over
        self._limit_sequence = min(floor, LAST_SEQUENCE - at.capacity) + at.capacity
        self._limit_end = at.ends[floor & at.mask] + self.limit
        return True

    cdef int64_t ended(self, int64_t end) noexcept:
        """The first sequence from the floor up to put that ends at `end` or later: as numpy.searchsorted."""
        cdef const int64_t* ends = self.mapped.ends + (self._floor & self.mapped.mask)
        cdef int64_t low = 0, high = self.put - self._floor + 1, middle
        while low < high:
            middle = (low + high) // 2
            if ends[middle] < end:
                low = middle + 1
            else:
                high = middle
        return self._floor + low

    cdef bint slowest(self, int64_t* slowest) noexcept:
        """As ring.slowest_ack; False where an ack is absurd."""
        cdef int64_t* words = self.mapped.words
        cdef int64_t entries = look(words + ENTRIES), entry, found = 0
        if not 0 <= entries <= MOST:
            return False
        slowest[0] = DISARM
        for entry in range(entries):
            if look(words + FIRST_STATE + entry * NEXT_ENTRY) & 1:
                slowest[0] = min(slowest[0], look(words + FIRST_ACK + entry * NEXT_ENTRY))
                found = 1
        if not found:
            slowest[0] = look(words + FLOOR)
        return <uint64_t>slowest[0] - <uint64_t>self.put + <uint64_t>FAR <= 2 * <uint64_t>FAR

    cdef int64_t published(self, int64_t n, int64_t end, int64_t rows) noexcept:
        """Let the next `n` events, which are whole, be seen; return the last one's sequence."""
        cdef Mapped at = self.mapped
        publish(at.words + PUT, self.put + n)
        self.put += n
        self.end, self.rows = end, rows
        settle(at.asymmetric)
        if look(at.words + ARMED):
            self.wake()
        return self.put

    cdef void wake(self) noexcept:
        """As ring.armed_readers, in its order: wake the readers that have what they wait for."""
        cdef int64_t* words = self.mapped.words
        cdef int64_t* wanted
        cdef int64_t entries, entry, wish, first = 0 if self.mapped.logged else 1
        publish(words + ARMED, 0)
        settle(False)  # a full fence: or a reader that arms itself now could have its flag cleared, and its wish not seen
        entries = min(look(words + ENTRIES), MOST)  # after the fence, as the wishes: or a reader that came since would not be seen
        for entry in range(first, entries):
            wanted = words + FIRST_WANTED + entry * NEXT_ENTRY
            wish = look(wanted)
            if wish == DISARM or wish == LOITERING:
                continue
            if wish > self.put:
                publish(words + ARMED, 1)
            else:
                publish(wanted, DISARM)
                wake_up(words + FIRST_WOKEN + entry * NEXT_ENTRY)
