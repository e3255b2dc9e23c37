# The shortest decimal that reads back as a double, of those the nearest one: what Python's repr() has, in whole numbers of 128 bits. What
# reads back as a double is all numbers nearer to it than to its neighbors. 10**-n, with n the least for which that is no more than the distance of two
# doubles, has a multiple among them, and 10 * 10**-n has at most one: that one is shorter, where it is there. From 1e-4 to 2**53 all products fit: a double is c * 2**-s there with
# s <= 66, and n is at most 20.

cdef extern from *:
    """
    #if defined(__SIZEOF_INT128__)
    #include <stdint.h>
    #include <string.h>
    typedef unsigned __int128 wide_t;

    /* Gives n, the digits behind the point, with all digits as a number; -1 for what is out of range. */
    static int shortest_digits(double value, uint64_t *digits) {
        uint64_t bits, c, near, ten;
        wide_t power = 1, low, exact, high;
        int s, n, i, odd, least, in, next_in;
        if (!(value >= 1e-4 && value < 9007199254740992.0)) return -1;
        memcpy(&bits, &value, 8);
        s = 1075 - (int)(bits >> 52);
        c = (bits & 0xFFFFFFFFFFFFFull) | 1ull << 52;
        odd = c & 1;
        least = c == 1ull << 52;  /* the neighbor below is at half the distance */
        n = (s * 1262611 + (least ? 524031 : 0) + (1 << 22) - 1) >> 22;  /* by log10(2) and -log10(3/4), each times 2**22 */
        for (i = 0; i < n; i++) power *= 10;
        exact = power * c;
        near = (uint64_t)(exact >> s);
        exact <<= 2;
        low = exact - power * (least ? 1 : 2);
        high = exact + power * 2;
        if (odd) { low++; high--; }  /* what is in the middle goes to the even one */
        s += 2;
        ten = near / 10 * 10;
        in = (wide_t)ten << s >= low;
        next_in = (wide_t)(ten + 10) << s <= high;
        if (in != next_in) {
            *digits = in ? ten : ten + 10;
            return n;
        }
        in = (wide_t)near << s >= low;
        next_in = (wide_t)(near + 1) << s <= high;
        if (in && next_in) {
            wide_t middle = (wide_t)(2 * near + 1) << (s - 1);
            in = exact < middle || (exact == middle && !(near & 1));
        }
        *digits = in ? near : near + 1;
        return n;
    }
    #else
    static int shortest_digits(double value, uint64_t *digits) { return -1; }
    #endif
    """
    int shortest_digits(double value, uint64_t* digits) noexcept nogil


cdef int write_plain(uint8_t* to, double value) noexcept nogil:
    """A double without an exponent, as Python prints it; -1 where this cannot."""
    cdef uint64_t digits = 0, whole
    cdef int sign = 0, size, n
    if value < 0:
        to[0] = c"-"
        value, sign = -value, 1
    n = shortest_digits(value, &digits)
    if n < 0:
        return -1
    while n > 1 and not digits % 10:
        digits //= 10
        n -= 1
    if not n:
        size = sign + write_unsigned(to + sign, digits)
        memcpy(to + size, b".0", 2)
        return size + 2
    whole = digits // POWERS[n] if n < 20 else 0
    size = sign + write_unsigned(to + sign, whole)
    to[size] = c"."
    write_padded(to + size + 1, digits - whole * POWERS[n] if n < 20 else digits, n)
    return size + 1 + n
