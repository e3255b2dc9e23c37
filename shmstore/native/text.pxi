# UTF-8 -> str. Python's own decoder widens what it has made at each character that needs more room, and branches at each: over a quarter of the
# time of reading wide rows. Here the text is copied to where no other process can change it, checked as a whole, and its characters are counted.
# Then each byte gets the character that would begin there, which the compiler does for many at once, and those that begin one are moved together.

cdef extern from *:
    """
    enum { TEXT_MOST = 1024 };  /* bytes that are decoded here; longer ones spend their time on memory */

    typedef struct {
        unsigned char bytes[TEXT_MOST + 4];  /* what follows a last byte is looked at, and not used */
        unsigned short units[TEXT_MOST];
    } text_room;

    /* The largest character that there may be, at least U+00FF. */
    static inline Py_UCS4 text_limit(const unsigned char *at, size_t size, size_t *characters) {
        size_t i, count = 0;
        unsigned char most = 0;
        for (i = 0; i < size; i++) {
            count += (at[i] & 0xC0) != 0x80;
            most = at[i] > most ? at[i] : most;
        }
        *characters = count;
        return most < 0xC4 ? 0xFF : most < 0xF0 ? 0xFFFF : 0x10FFFF;
    }

    static inline int is_ascii(const unsigned char *at, size_t size) {
        unsigned long long eight[4], all = 0;
        size_t i = 0;
        for (; size - i >= 32; i += 32) {
            memcpy(eight, at + i, 32);
            all |= eight[0] | eight[1] | eight[2] | eight[3];
        }
        for (; size - i >= 8; i += 8) {
            memcpy(eight, at + i, 8);
            all |= eight[0];
        }
        for (; i < size; i++)
            all |= at[i];
        return !(all & 0x8080808080808080);
    }

    /* `room->bytes` are UTF-8 whose characters are `count`, none above U+FFFF. */
    static void fill_units(PyObject *text, text_room *room, size_t size, size_t count) {
        const unsigned char *at = room->bytes;
        size_t i, k = 0;
        memset(room->bytes + size, 0, 4);
        for (i = 0; i < size; i++) {
            unsigned short a = at[i], b = at[i + 1] & 0x3F, c = at[i + 2] & 0x3F;
            unsigned short two = (unsigned short)((a & 0x1F) << 6 | b), three = (unsigned short)(a << 12 | b << 6 | c);
            room->units[i] = a < 0x80 ? a : a < 0xE0 ? two : three;
        }
        if (PyUnicode_KIND(text) == PyUnicode_1BYTE_KIND) {
            Py_UCS1 *to = PyUnicode_1BYTE_DATA(text);
            for (i = 0; i < size; i++) {  /* behind the last character lies the zero: it is written over, and written again */
                to[k] = (Py_UCS1)room->units[i];
                k += (at[i] & 0xC0) != 0x80;
            }
            to[count] = 0;
        } else {
            Py_UCS2 *to = PyUnicode_2BYTE_DATA(text);
            for (i = 0; i < size; i++) {
                to[k] = room->units[i];
                k += (at[i] & 0xC0) != 0x80;
            }
            to[count] = 0;
        }
    }
    """
    ctypedef struct text_room:
        uint8_t* bytes
    size_t TEXT_MOST
    uint32_t text_limit(const uint8_t* at, size_t size, size_t* characters) noexcept nogil
    bint is_ascii(const uint8_t* at, size_t size) noexcept nogil
    void fill_units(object text, text_room* room, size_t size, size_t count) noexcept

cdef extern from "Python.h":
    object PyUnicode_New(Py_ssize_t size, uint32_t limit)
    void* PyUnicode_DATA(object text)


cdef inline object text_of(const uint8_t* at, size_t size):
    """The str of these bytes. Raises UnicodeDecodeError, as Python does, where they are not UTF-8.

    Python has the strs of one character ready, and decodes them; out of a copy, as it may count the characters before it fills a str that has as many.
    """
    cdef text_room room
    cdef size_t count
    cdef uint32_t limit
    if size > TEXT_MOST:
        copy = PyBytes_FromStringAndSize(<const char*>at, size)
        return PyUnicode_DecodeUTF8(PyBytes_AS_STRING(copy), size, NULL)
    memcpy(room.bytes, at, size)
    if size < 2:
        return PyUnicode_DecodeUTF8(<const char*>room.bytes, size, NULL)
    if is_ascii(room.bytes, size):
        text = PyUnicode_New(size, 0x7F)
        memcpy(PyUnicode_DATA(text), room.bytes, size)
        return text
    limit = text_limit(room.bytes, size, &count)
    if limit == 0x10FFFF or count < 2 or not is_utf8(room.bytes, size):
        return PyUnicode_DecodeUTF8(<const char*>room.bytes, size, NULL)
    text = PyUnicode_New(count, limit)
    fill_units(text, &room, size, count)
    return text
