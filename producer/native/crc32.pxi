# CRC-32 as zlib has it (reflected, polynomial 0xEDB88320), eight bytes at a time ("slicing by 8", Kounavis and Berry 2005).

cdef uint32_t CRC[8][256]


cdef void _fill_crc() noexcept:
    cdef uint32_t value
    cdef int i, k
    for i in range(256):
        value = i
        for k in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        CRC[0][i] = value
    for i in range(256):
        for k in range(1, 8):
            CRC[k][i] = CRC[k - 1][i] >> 8 ^ CRC[0][CRC[k - 1][i] & 0xFF]


_fill_crc()


cdef uint32_t crc32(const uint8_t* at, size_t size) noexcept:
    cdef uint32_t value = <uint32_t>0xFFFFFFFF, low, high
    while size >= 8:
        memcpy(&low, at, 4)
        memcpy(&high, at + 4, 4)
        low ^= value
        value = (
            CRC[7][low & 0xFF] ^ CRC[6][low >> 8 & 0xFF] ^ CRC[5][low >> 16 & 0xFF] ^ CRC[4][low >> 24]
            ^ CRC[3][high & 0xFF] ^ CRC[2][high >> 8 & 0xFF] ^ CRC[1][high >> 16 & 0xFF] ^ CRC[0][high >> 24]
        )
        at += 8
        size -= 8
    while size:
        value = value >> 8 ^ CRC[0][(value ^ at[0]) & 0xFF]
        at += 1
        size -= 1
    return ~value
