# MySQL's binary JSON -> the text that MySQL prints for it; as `shmstore.producer.values.json_binary`, which draws the bytes. Numbers with a
# point and values of SQL types inside a document are printed by its Python functions.

cdef struct Json:
    const uint8_t* data
    int64_t size
    int64_t left       # what elements and text may still take: damaged bytes cannot make this run long


cdef inline int _need(Json* json, int64_t at, int64_t size) except -1:
    if at < 0 or at + size > json.size:
        raise IndexError(f"JSON of {json.size} bytes ends before byte {at + size}")
    return 0


cdef inline int _spend(Json* json, int64_t amount) except -1:
    json.left -= amount
    if json.left < 0:
        raise ValueError("JSON elements overlap")
    return 0


cdef inline bint _must_escape(uint64_t word) noexcept:
    """Whether one of eight bytes is a quote, a backslash or below 32: a difference from one of those below 0 borrows a high bit."""
    cdef uint64_t quote = word ^ <uint64_t>0x2222222222222222, backslash = word ^ <uint64_t>0x5C5C5C5C5C5C5C5C
    cdef uint64_t ones = <uint64_t>0x0101010101010101, high = <uint64_t>0x8080808080808080
    return ((quote - ones & ~quote | backslash - ones & ~backslash | word - 32 * ones & ~word) & high) != 0


cdef int put_quoted(Buffer* out, const uint8_t* text, size_t size) except -1:
    """A JSON string as MySQL quotes it: only what must be escaped is. Whether it is UTF-8 is seen of the whole document."""
    cdef size_t i = 0
    cdef uint64_t word
    cdef uint8_t c
    reserve(out, 2 + 6 * size)
    cdef uint8_t* at = out.data + out.size
    at[0] = c'"'
    at += 1
    while i < size:
        if size - i >= 8:
            memcpy(&word, text + i, 8)
            if not _must_escape(word):
                memcpy(at, &word, 8)
                at += 8
                i += 8
                continue
        c = text[i]
        i += 1
        if c >= 32 and c != c'"' and c != c'\\':
            at[0] = c
            at += 1
            continue
        at[0] = c"\\"
        if c == c'"' or c == c"\\":
            at[1] = c
        elif c == 8:
            at[1] = c"b"
        elif c == 9:
            at[1] = c"t"
        elif c == 10:
            at[1] = c"n"
        elif c == 12:
            at[1] = c"f"
        elif c == 13:
            at[1] = c"r"
        else:
            memcpy(at + 1, b"u00", 3)
            at[4] = c"0" + (c >> 4)
            at[5] = b"0123456789abcdef"[c & 15]
            at += 4
        at += 2
    at[0] = c'"'
    out.size = at + 1 - out.data
    return 0


cdef int _put_number(Buffer* out, bint negative, uint64_t value) except -1:
    reserve(out, 21)
    cdef uint8_t* to = out.data + out.size
    to[0] = c"-"
    out.size += negative + write_digits(<char*>to + negative, value)
    return 0


cdef inline int put_signed(Buffer* out, int64_t value) except -1:
    return _put_number(out, value < 0, <uint64_t>-value if value < 0 else <uint64_t>value)


cdef inline int _put_pair(Buffer* out, const char* two) except -1:
    reserve(out, 2)
    memcpy(out.data + out.size, two, 2)
    out.size += 2
    return 0


cdef int _put_literal(Buffer* out, int literal) except -1:
    if literal == 0:
        return put_raw(out, <const uint8_t*>b"null", 4)
    if literal == 1:
        return put_raw(out, <const uint8_t*>b"true", 4)
    if literal == 2:
        return put_raw(out, <const uint8_t*>b"false", 5)
    raise ValueError(f"JSON literal {literal}")


cdef int64_t _length(Json* json, int64_t* at) except -1:
    """A length in groups of 7 bits, lowest first."""
    cdef int64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while True:
        _need(json, at[0], 1)
        byte = json.data[at[0]]
        value |= <int64_t>(byte & 0x7F) << shift
        at[0] += 1
        if byte < 0x80:
            return value
        shift += 7
        if shift > 28:
            raise ValueError("a JSON length of more than 5 bytes")


cdef int put_json(Json* json, Buffer* out, int kind, int64_t at, int depth, tuple texts) except -1:
    """Print the value of type `kind` at `at`. `texts`: the functions for doubles and for values of SQL types."""
    cdef int64_t length
    cdef double number
    cdef int type_
    if kind <= 3:
        return _put_container(json, out, kind, at, depth + 1, texts)
    if kind == 12:
        length = _length(json, &at)
        _need(json, at, length)
        _spend(json, length)
        return put_quoted(out, json.data + at, length)
    if kind in (5, 7, 9):
        _need(json, at, 2 << (kind - 5) // 2)
        return put_signed(out, signed_little(json.data + at, 2 << (kind - 5) // 2))
    if kind in (6, 8, 10):
        _need(json, at, 2 << (kind - 6) // 2)
        return _put_number(out, False, little(json.data + at, 2 << (kind - 6) // 2))
    if kind == 4:
        _need(json, at, 1)
        return _put_literal(out, json.data[at])
    if kind == 11:
        _need(json, at, 8)
        memcpy(&number, json.data + at, 8)
        text = texts[0](number).encode()
    elif kind == 15:
        _need(json, at, 1)
        type_ = json.data[at]
        at += 1
        length = _length(json, &at)
        _need(json, at, length)
        _spend(json, length)
        text = texts[1](type_, PyBytes_FromStringAndSize(<char*>json.data + at, length)).encode()
    else:
        raise ValueError(f"JSON type {kind}")
    return put_raw(out, <uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef int _put_container(Json* json, Buffer* out, int kind, int64_t at, int depth, tuple texts) except -1:
    cdef int width = 4 if kind & 1 else 2      # bytes of a number
    cdef bint is_object = kind <= 1
    cdef int64_t count, size, keys, entry, offset, start, length, i
    cdef int type_
    if depth > 101:
        raise ValueError("JSON deeper than 100 levels")
    _need(json, at, 2 * width)
    count, size = <int64_t>little(json.data + at, width), <int64_t>little(json.data + at + width, width)
    if at + size > json.size or count * 3 > size:
        raise ValueError(f"a JSON container of {count} elements in {size} of {json.size - at} bytes")
    _spend(json, count)
    keys = at + 2 * width
    entry = keys + (count * (width + 2) if is_object else 0)
    _need(json, entry, count * (width + 1))
    put_byte(out, c"{" if is_object else c"[")
    for i in range(count):
        if i:
            _put_pair(out, b", ")
        if is_object:
            start = at + <int64_t>little(json.data + keys + i * (width + 2), width)
            length = <int64_t>little(json.data + keys + i * (width + 2) + width, 2)
            _need(json, start, length)
            _spend(json, length)
            put_quoted(out, json.data + start, length)
            _put_pair(out, b": ")
        type_ = json.data[entry + i * (width + 1)]
        start = entry + i * (width + 1) + 1
        offset = <int64_t>little(json.data + start, width)
        if type_ == 4:
            _put_literal(out, offset & 0xFF)
        elif type_ == 5:
            put_signed(out, signed_little(json.data + start, 2))
        elif type_ == 6:
            _put_number(out, False, offset & 0xFFFF)
        elif type_ == 7 and width == 4:
            put_signed(out, signed_little(json.data + start, 4))
        elif type_ == 8 and width == 4:
            _put_number(out, False, offset)
        else:
            put_json(json, out, type_, at + offset, depth, texts)
    return put_byte(out, c"}" if is_object else c"]")
