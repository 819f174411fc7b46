// Reading in one call.
#include "reading.h"

extern "C" {

// Whole sentences, end to end, through all blocks; they are changed in place. Each share of the threads takes the next
// few of them.
int regard_read(const Stack* stack, float* x, const int* lengths, int sentences, int shares, int threads) {
    long total = 0;
    for (int s = 0; s < sentences; ++s) total += lengths[s];
    const long at_once = (long)shares * TOKENS, pieces = shares * ((total + at_once - 1) / at_once);
    std::vector<int> begins{0};  // of pieces of about one length, as many for each share
    std::vector<long> first{0};  // and their first token
    int longest = 0, most = 0, count = 0;
    for (int s = 0; s < sentences; ++s) {
        const long middle = 2 * (first.back() + count) + lengths[s];
        if (count > 0 && middle * pieces >= 2 * total * (long)begins.size()) {
            begins.push_back(s);
            first.push_back(first.back() + count);
            count = 0;
        }
        count += lengths[s];
        most = std::max(most, count);
        longest = std::max(longest, lengths[s]);
    }
    begins.push_back(sentences);
    std::atomic<int> next{0};
    return crewed_out(shares, shares, threads, [&](int, int, Crew& crew) {
        Desk desk(*stack->blocks[0].inward->by, *stack, crew, most, longest);
        for (int i; (i = next++) + 1 < (int)begins.size();)
            desk.read(x + first[i] * stack->dim, lengths + begins[i], begins[i + 1] - begins[i], false,
                      [](int, const float*) {});
    });
}

}
