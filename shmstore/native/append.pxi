# The appender: events of the ring -> files of the log. What `shmstore.log.appender.Appender` does, without Python.
#
# A group of events is written in the order events, slots, blocks, and only then LOGGED says so. A process killed between any two
# lines leaves bytes behind the last whole block, which recovery cuts off, or a whole block that LOGGED does not tell of yet, which
# recovery finds. What the disk refuses leaves the numbers here as they were: the next try writes the same places again.

cdef extern from *:
    """
    #include <errno.h>
    #include <stdio.h>
    #define load_acquired(word) __atomic_load_n((word), __ATOMIC_ACQUIRE)
    static int write_all(int fd, const void *bytes, int64_t size, int64_t at) {
        const char *from = (const char *)bytes;
        ssize_t done;
        trace('w', NULL, size);
        while (size > 0) {
            done = pwrite(fd, from, (size_t)(size < 0x7ffff000 ? size : 0x7ffff000), (off_t)at);
            if (done < 0 && errno == EINTR)
                continue;
            if (done <= 0)
                return done < 0 ? errno : EIO;
            from += done, at += done, size -= done;
        }
        return 0;
    }
    /* next.ENDING -> its sequence, 20 digits, in the folder */
    static int name_set(int folder, const char *ending, int64_t first) {
        char before[16], after[40];
        snprintf(before, sizeof before, "next%s", ending);
        snprintf(after, sizeof after, "%020lld%s", (long long)first, ending);
        trace('n', NULL, first);
        while (renameat(folder, before, folder, after) != 0)
            if (errno != EINTR)
                return errno;
        return 0;
    }
    """
    int64_t load_acquired(const int64_t* word) noexcept nogil
    int write_all(int fd, const void* bytes, int64_t size, int64_t at) noexcept nogil
    int name_set(int folder, const char* ending, int64_t first) noexcept nogil
    const int ECANCELED

cdef int64_t KEEPER = header_word("keeper"), FREED = header_word("freed"), SYNC_WANTED = header_word("sync_wanted")
cdef int64_t LOG_VERSION = VERSION, MOST_BYTES = GROUP_BYTES, OVERSIZED_BIT = SlotFlag.OVERSIZED
cdef bytes LOG_MAGIC = MAGIC

cdef enum:
    MOST_RECORDS = 4096     # events in a group
    # answers besides 0, which is "stopped, or the time is up", and an errno
    OVERSIZED_NEXT = -1     # Python has to append the next event
    DAMAGED = -2            # the ring contradicts itself
    SET_WANTED = -3         # inside only: the next set is not prepared, or the last one not collected

# ns: how long little waits for more, how often it is looked at meanwhile, how often where much has just come; and the longest sleep
cdef int64_t LOITER = 5000000, LOITER_SLICE = 1000000, FLOW_SLICE = 250000, SLEEP = 1000000000


cdef struct Ring:  # where the parts of the segment lie, for code that touches no object
    int64_t* words
    const int64_t* ends
    const int64_t* rows
    const Slot* slots
    const uint8_t* arena
    int64_t mask, capacity, arena_size
    bint asymmetric


cdef struct LogSet:
    int events, slots, blocks  # descriptors
    int64_t first, count       # sequence of its first event, and how many it has
    int64_t at, block_count    # bytes in .events, BLOCKs in .blocks


cdef class Appender:
    """Appends what is in the ring to the log. One thread runs it; `stop`, `set_next` and `retired` may be called by another."""

    cdef Mapped mapped  # holds the memory
    cdef Ring ring
    cdef int folder
    cdef int64_t epoch, file_bytes, file_slots, limit
    cdef LogSet current, prepared, old
    cdef int64_t is_prepared, is_old, stopping  # flags that the two threads tell each other by; what belongs to them is written before
    cdef bint flowing  # what was appended last did not have to wait for more
    cdef int renamed  # files of the next set that have their names already
    cdef LogRecord* staging

    def __cinit__(self, views, int folder, int64_t epoch, int64_t file_bytes, int64_t file_slots):
        cdef Mapped at = views.native
        self.mapped, self.limit = at, views.limit
        self.ring.words, self.ring.ends, self.ring.rows, self.ring.slots, self.ring.arena = at.words, at.ends, at.rows, at.slots, at.arena
        self.ring.mask, self.ring.capacity, self.ring.arena_size, self.ring.asymmetric = at.mask, at.capacity, at.arena_size, at.asymmetric
        self.folder, self.epoch, self.file_bytes, self.file_slots = folder, epoch, file_bytes, file_slots
        self.staging = <LogRecord*>malloc(MOST_RECORDS * sizeof(LogRecord))
        if self.staging == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.staging)

    def set_current(self, fds, int64_t first, int64_t count, int64_t at, int64_t blocks):
        """Continue in a set (descriptors of its events, slots and blocks) that has `count` events from `first` on, `at` bytes and `blocks` blocks.

        Raises `StoreCorrupt` where the ring does not have the next event any more.
        """
        cdef int64_t* words = self.ring.words
        cdef int64_t logged = first + count - 1
        if not look(words + FLOOR) <= logged <= look(words + PUT):
            raise StoreCorrupt(
                f"the log ends at event {logged}, the ring has those from {look(words + FLOOR) + 1} to {look(words + PUT)}: `shmstore log verify` shows more"
            )
        self.current = opened(fds)
        self.current.first, self.current.count, self.current.at, self.current.block_count = first, count, at, blocks
        publish(words + FIRST_ACK, logged)

    def set_next(self, fds):
        """Give the descriptors (events, slots, blocks) of a new empty set named ``next``, for when the current one is full."""
        if load_acquired(&self.is_prepared):
            raise ValueError("the next set is prepared already")
        self.prepared, self.renamed = opened(fds), 0
        store_released(&self.is_prepared, 1)
        wake_up(self.ring.words + FIRST_WOKEN)

    @property
    def prepared_set(self):
        """Whether the next set is prepared."""
        return bool(load_acquired(&self.is_prepared))

    def retired(self):
        """Return ((events, slots, blocks), first, count, bytes of events) of the set that became full, once; None where none did."""
        if not load_acquired(&self.is_old):
            return None
        cdef LogSet old = self.old
        store_released(&self.is_old, 0)
        wake_up(self.ring.words + FIRST_WOKEN)
        return (old.events, old.slots, old.blocks), old.first, old.count, old.at

    def stop(self):
        """Let `run`, and every later call, return after the group that it is at."""
        store_released(&self.stopping, 1)
        wake_up(self.ring.words + FIRST_WOKEN)

    def run(self, double seconds):
        """Append for so many seconds; after that, only what waits. 0: it was stopped, or nothing waits; above 0: the errno of the disk;
        OVERSIZED_NEXT (-1): the next event is to be given to `append_oversized`; DAMAGED (-2): the ring contradicts itself.
        """
        cdef int64_t until = clock_now() + <int64_t>(min(max(seconds, 0), 1e9) * 1e9)
        cdef int result
        with nogil:
            result = self.go(until)
        return result

    def append_oversized(self, payload):
        """Append the next event, whose payload lies outside of the ring. 0: done; else an errno, ECANCELED where it was stopped, or DAMAGED."""
        cdef Py_buffer view
        cdef int result
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                result = self.take_in(<const uint8_t*>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        return result

    cdef int go(self, int64_t until) noexcept nogil:
        cdef int64_t* words = self.ring.words
        cdef int64_t put, logged
        cdef int result
        while not load_acquired(&self.stopping):
            logged = self.current.first + self.current.count - 1
            put = look(words + PUT)
            if put == logged:
                if clock_now() >= until:
                    return 0
                self.rest(logged, until)
                continue
            if put < logged or put - logged > self.ring.capacity:
                return DAMAGED
            if not self.is_little(logged, put):
                self.flowing = True
            else:
                self.loiter(logged, until)
                put = look(words + PUT)
                if put < logged or put - logged > self.ring.capacity:
                    return DAMAGED
            result = self.append(logged, put)
            if result == SET_WANTED:
                result = self.wait_for_set()
            if result != 0:
                return result
        return 0

    cdef void rest(self, int64_t logged, int64_t until) noexcept nogil:
        """Sleep until something was put. No wake-up is lost: wanted, armed, heavy fence, look; the producer publishes, looks at armed."""
        cdef int64_t* words = self.ring.words
        publish(words + FIRST_WANTED, logged + 1)
        publish(words + ARMED, 1)
        settle_heavily(self.ring.asymmetric)
        if look(words + PUT) == logged and not load_acquired(&self.stopping):
            sleep_on(<uint32_t*>(words + FIRST_WOKEN), min(until, clock_now() + SLEEP))
        publish(words + FIRST_WANTED, DISARM)

    cdef bint is_little(self, int64_t logged, int64_t put) noexcept nogil:
        """Whether what waits may become more, so that it is written at once, for less."""
        cdef Ring* at = &self.ring
        cdef int64_t waiting = at.ends[put & at.mask] - at.ends[logged & at.mask]
        return put - logged < at.capacity // 8 and waiting < min(MOST_BYTES, self.limit // 8)

    cdef void loiter(self, int64_t logged, int64_t until) noexcept nogil:
        """Wait a moment for more, unless a process waits for free space or for the disk. In the order wanted, heavy fence, look, as `rest`; but
        nothing is armed: a put does not end it, a producer without free space does."""
        cdef int64_t* words = self.ring.words
        cdef int64_t now = clock_now(), end = min(until, now + LOITER), put, wish, slice = FLOW_SLICE if self.flowing else LOITER_SLICE
        self.flowing = False
        if now >= end:
            return
        publish(words + FIRST_WANTED, LOITERING)
        settle_heavily(self.ring.asymmetric)
        while now < end:
            wish = look(words + ACK_WANTED)
            if (logged < wish and wish < DISARM) or look(words + SYNC_WANTED) > logged or load_acquired(&self.stopping):
                break
            put = look(words + PUT)
            if not self.is_little(logged, put):
                self.flowing = True
                break
            sleep_on(<uint32_t*>(words + FIRST_WOKEN), min(end, now + slice))
            now = clock_now()
        publish(words + FIRST_WANTED, DISARM)

    cdef int append(self, int64_t logged, int64_t put) noexcept nogil:
        """Append the next group of events `logged` + 1 to `put`: what one block takes, and what has space in the set."""
        cdef Ring* at = &self.ring
        cdef int64_t i = (logged + 1) & at.mask, n = 0, total = 0, size, start = at.ends[logged & at.mask], most, space
        cdef const Slot* slots = at.slots + i
        cdef LogRecord* record = self.staging
        cdef int result
        if slots[0].rest & OVERSIZED_BIT:
            return OVERSIZED_NEXT
        result = self.make_space(logged, slots[0].size)
        if result != 0:
            return result
        most = min(min(put - logged, MOST_RECORDS), self.file_slots - self.current.count)
        space = min(self.file_bytes - self.current.at, min(MOST_BYTES, at.arena_size))
        while n < most:
            record.slot = slots[n]
            size = record.slot.size
            if record.slot.rest & OVERSIZED_BIT or n and total + size > space:
                break
            record.end, record.rows, record.at = at.ends[i + n], at.rows[i + n], self.current.at + total
            total += size
            if size == 0 or record.end != start + total:
                return DAMAGED
            record += 1
            n += 1
        if n == 0 or start < 0 or total > at.arena_size:  # of the first: it changed since it was looked at
            return DAMAGED
        return self.write_group(logged, n, at.arena + start % at.arena_size, total)

    cdef int take_in(self, const uint8_t* payload, int64_t size) noexcept nogil:
        cdef Ring* at = &self.ring
        cdef int64_t logged, i
        cdef int result
        while not load_acquired(&self.stopping):
            logged = self.current.first + self.current.count - 1
            i = (logged + 1) & at.mask
            self.staging[0].slot = at.slots[i]
            if look(at.words + PUT) <= logged or size != self.staging[0].slot.size or not self.staging[0].slot.rest & OVERSIZED_BIT:
                return DAMAGED
            result = self.make_space(logged, size)
            if result == SET_WANTED:
                result = self.wait_for_set()
                if result == 0:
                    continue
            if result != 0:
                return result
            self.staging[0].end, self.staging[0].rows, self.staging[0].at = at.ends[i], at.rows[i], self.current.at
            return self.write_group(logged, 1, payload, size)
        return ECANCELED

    cdef int write_group(self, int64_t logged, int64_t n, const uint8_t* payload, int64_t size) noexcept nogil:
        """Write `n` events, whose records are staged and whose payloads lie at `payload`, and then let them be known as logged."""
        cdef int64_t* words = self.ring.words
        cdef LogBlock block
        cdef int64_t last = logged + n, k
        cdef int result
        memset(&block, 0, sizeof(LogBlock))
        block.first, block.count, block.at, block.size = logged + 1, n, self.current.at, size
        block.newest_ms = self.staging[0].slot.time
        for k in range(1, n):
            block.newest_ms = max(block.newest_ms, self.staging[k].slot.time)
        block.appended_ms = wall_now() // 1000000
        block.events_check = crc_of(payload, size, 0)
        block.slots_check = crc_of(<const uint8_t*>self.staging, n * sizeof(LogRecord), 0)
        block.check = crc_of(<const uint8_t*>&block, sizeof(LogBlock) - 4, 0)
        result = write_all(self.current.events, payload, size, self.current.at)
        if result == 0:  # killed here: bytes that no block covers
            result = write_all(
                self.current.slots, self.staging, n * sizeof(LogRecord), sizeof(LogHeader) + self.current.count * sizeof(LogRecord)
            )
        if result == 0:  # killed here: the same
            result = write_all(self.current.blocks, &block, sizeof(LogBlock), self.current.block_count * sizeof(LogBlock))
        if result != 0:  # nothing counts: the next try begins at the same places
            return result
        self.current.count += n  # killed here: a whole block that LOGGED does not tell of; the next process that opens the log finds it
        self.current.at += size
        self.current.block_count += 1
        publish(words + FIRST_ACK, last)
        settle(False)  # a full fence: LOGGED, before the looks at who waits for it
        if look(words + ACK_WANTED) <= last:  # the producer takes its wish back itself: taken back here, it could be the next one already
            wake_up(words + FREED)
        if look(words + SYNC_WANTED) > logged:
            wake_up(words + KEEPER)
        return 0

    cdef int make_space(self, int64_t logged, int64_t size) noexcept nogil:
        """Go over to the next set where the current one has no free space for the next event, of `size` bytes. 0: there is space."""
        cdef Ring* at = &self.ring
        cdef LogHeader header
        cdef int result
        if self.current.count < self.file_slots and (self.current.count == 0 or size <= self.file_bytes - self.current.at):
            return 0
        if not load_acquired(&self.is_prepared) or load_acquired(&self.is_old):
            return SET_WANTED
        if self.renamed == 0:
            memset(&header, 0, sizeof(LogHeader))
            memcpy(header.magic, log_magic, 8)
            header.version, header.epoch, header.first = LOG_VERSION, self.epoch, logged + 1
            header.end, header.rows = at.ends[logged & at.mask], at.rows[logged & at.mask]
            header.created_ms = wall_now() // 1000000
            header.check = crc_of(<const uint8_t*>&header, sizeof(LogHeader) - 8, 0)
            result = write_all(self.prepared.slots, &header, sizeof(LogHeader), 0)
            if result != 0:
                return result
        while self.renamed < 3:  # killed here: a set without all its files, which recovery removes; it has no event
            result = name_set(self.folder, b".blocks" if self.renamed == 0 else b".slots" if self.renamed == 1 else b".events", logged + 1)
            if result != 0:
                return result
            self.renamed += 1
        self.old, self.current = self.current, self.prepared  # killed here: an empty set, which recovery removes
        self.current.first = logged + 1
        store_released(&self.is_prepared, 0)
        store_released(&self.is_old, 1)
        wake_up(at.words + KEEPER)
        return 0

    cdef int wait_for_set(self) noexcept nogil:
        """Sleep until the other thread has prepared a set and collected the last one; it wakes entry 0. 0: it has, or this is stopped."""
        while not load_acquired(&self.stopping) and (not load_acquired(&self.is_prepared) or load_acquired(&self.is_old)):
            wake_up(self.ring.words + KEEPER)
            sleep_on(<uint32_t*>(self.ring.words + FIRST_WOKEN), clock_now() + SLEEP)
        return 0


cdef const uint8_t* log_magic = <const uint8_t*>PyBytes_AS_STRING(LOG_MAGIC)


cdef LogSet opened(fds) except *:
    cdef LogSet found
    memset(&found, 0, sizeof(LogSet))
    found.events, found.slots, found.blocks = fds
    return found


# ---------------------------------------------------------------- checks


def crc32(piece, uint32_t before=0):
    """The CRC-32 of `piece`, as `zlib.crc32`."""
    cdef Py_buffer view
    cdef uint32_t value
    PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
    with nogil:
        value = crc_of(<const uint8_t*>view.buf, view.len, before)
    PyBuffer_Release(&view)
    return value


def verify_blocks(events, records, blocks, int64_t first_block, int64_t last_block, start=None):
    """Return the index of the first damaged block from `first_block` to `last_block`, or -1; as `shmstore.log.format.verify_blocks`."""
    cdef Py_buffer views[3]
    cdef int held = 0
    cdef int64_t found, first
    try:
        for part in (events, records, blocks):
            PyObject_GetBuffer(part, &views[held], PyBUF_SIMPLE)
            held += 1
        if not 0 <= first_block <= last_block < views[2].len // <int64_t>sizeof(LogBlock):
            raise ValueError(f"blocks {first_block} to {last_block} of {views[2].len // <int64_t>sizeof(LogBlock)}")
        first = (<const LogBlock*>views[2].buf).first if start is None else start
        with nogil:
            found = first_damaged(
                <const uint8_t*>views[0].buf, views[0].len, <const uint8_t*>views[1].buf, views[1].len // <int64_t>sizeof(LogRecord),
                <const LogBlock*>views[2].buf, first_block, last_block, first,
            )
        return found
    finally:
        while held:
            held -= 1
            PyBuffer_Release(&views[held])


cdef int64_t first_damaged(
    const uint8_t* events, int64_t size, const uint8_t* records, int64_t count, const LogBlock* blocks, int64_t k, int64_t last, int64_t start
) noexcept nogil:
    cdef const LogBlock* block
    cdef int64_t before
    while k <= last:
        block = blocks + k
        if crc_of(<const uint8_t*>block, sizeof(LogBlock) - 4, 0) != block.check:
            return k
        before = block.first - start
        # What a block says may be anything: no sum of it is made before it is known to be small.
        if not 0 <= before <= count or not 0 <= block.count <= count - before or not 0 <= block.at <= size or not 0 <= block.size <= size - block.at:
            return k
        if crc_of(records + before * sizeof(LogRecord), block.count * sizeof(LogRecord), 0) != block.slots_check:
            return k
        if crc_of(events + block.at, block.size, 0) != block.events_check:
            return k
        k += 1
    return -1
