// Reading a source and searching for the best answers, in one call. The steps are those of models/transformer.py,
// models/gpt.py and decode/search.py; what is called by which name there is called so here.
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>

#include "reading.h"

namespace {

constexpr double NEVER = -std::numeric_limits<double>::infinity();
constexpr int WORDS = 512;       // logits that are seen at a time
constexpr int LOGITS = 1 << 14;  // that exist at a time where a crew makes them, of a few rows

struct Model {
    Stack encoder, decoder;  // an encoder without blocks: nothing is read before writing begins
    Entry source, target;
    const Matrix* head;
};

struct Ask {
    int sentences, keep, expand, end, shortest, bans, prompt_length, prefix_length, longest;
    const int* banned;
    const int *source, *source_lengths;  // end to end
    const int* prompt;                   // (sentences, prompt_length)
    const int* prefixes;                 // (sentences, prefix_length): what an answer begins with, then -1
    const int* limits;
    const double* penalties;             // by length
    int (*stop)();                       // asked by the caller's own thread now and then; null: nobody wants to stop it
};

// Whether somebody wants the search stopped. Threads of others may not ask, but hear of it.
class Stop {
    typedef std::chrono::steady_clock Clock;
    static constexpr std::chrono::milliseconds OFTEN{50};

    int (*const asked)();
    const std::thread::id caller = std::this_thread::get_id();
    Clock::time_point next = Clock::now() + OFTEN;  // the caller's
    std::atomic<bool> wanted{false};

public:
    explicit Stop(int (*asked)()) : asked(asked) {}

    void ask() {
        if (!asked || std::this_thread::get_id() != caller || Clock::now() < next) return;
        if (asked()) wanted = true;
        next = Clock::now() + OFTEN;
    }

    void hear() {
        ask();
        if (wanted) throw std::runtime_error("somebody wants it stopped");
    }

    // What a caller who is done himself sees to; nothing, where nobody could want it.
    Meanwhile asking() { return asked ? Meanwhile([this] { ask(); }) : Meanwhile(); }
};

struct Answers {           // (sentences, keep), and (sentences, keep, longest)
    int* counts;           // of each sentence
    int *lengths, *finished;
    double *scores, *logprobs;
    int *tokens, *rows;
};

// ---- the memory: keys and values of the sources for every block of the decoder

struct Memory {
    std::vector<Buffer> keys;  // of each block, (tokens, 2 · dim): a key and a value
    std::vector<long> first;   // of each sentence, its first token
    std::vector<int> lengths;
    int longest = 0;

    Memory(const Model& model, const Ask& ask, Crew& crew, int from, int to, Stop& stop) {
        if (from == to) return;
        const Kernels& by = *model.head->by;
        long tokens = 0, skipped = 0;
        for (int s = 0; s < from; ++s) skipped += ask.source_lengths[s];
        for (int s = from; s < to; ++s) {
            first.push_back(tokens);
            lengths.push_back(ask.source_lengths[s]);
            tokens += lengths.back();
            longest = std::max(longest, lengths.back());
        }
        const int dim = model.encoder.dim, room = std::max(longest, TOKENS);
        for (int i = 0; i < model.decoder.count; ++i) keys.push_back(buffer(tokens * 2 * dim));
        Desk desk(by, model.encoder, crew, room, longest);
        const Buffer x = buffer((size_t)room * dim);
        for (int s = 0; s < (int)lengths.size();) {
            const int begin = s;
            int count = 0;
            for (; s < (int)lengths.size() && count + lengths[s] <= room; ++s) {
                desk.embed(model.source, ask.source + skipped + first[s], lengths[s], 0, x.get() + (long)count * dim);
                count += lengths[s];
            }
            desk.read(x.get(), &lengths[begin], s - begin, false, [&](int, const float*) { stop.hear(); });
            for (int i = 0; i < model.decoder.count; ++i)
                desk.product(*model.decoder.blocks[i].memory, x.get(), count, keys[i].get() + first[begin] * 2 * dim);
        }
    }
};

// ---- the past: keys and values of what has been written

struct Past {
    std::vector<Buffer> keys;  // of each block, (steps, rows, 2 · dim)
    long rows;

    Past(const Stack& stack, long steps, long rows) : rows(rows) {
        for (int i = 0; i < stack.count; ++i) keys.push_back(buffer(steps * rows * 2 * stack.dim));
    }
};

// ---- one answer in the making, as in decode/line.py

struct Word {  // of a story, which is read backwards
    int before, word, row;
};

struct Alive {
    double total;
    int parent, word, story;
};

struct Hypothesis {
    int story;
    double score, total;
    bool finished;
    int last_row;  // where it ended, if it did
};

struct Candidate {
    double sum;
    int parent, word;
};

struct Line {
    int sentence, said = 0;
    std::vector<Alive> alive{{0.0, 0, -1, -1}};
    std::vector<Hypothesis> ended;
};

bool better(const Candidate& a, const Candidate& b) { return a.sum > b.sum; }

class Search {
    const Model& model;
    const Ask& ask;
    Crew& crew;
    const Kernels& by;
    const Stack& stack;
    const int from, sentences, steps;
    std::vector<Line> lines;
    std::vector<int> live;                   // lines that go on
    std::vector<Word> words;
    std::vector<int> places, next_places;    // of each row, where its past is kept: (rows, steps)
    std::vector<int> tokens, every, banned;
    std::vector<Best> bests;
    std::vector<float> best_logits;
    std::vector<int> best_words;
    std::vector<Candidate> candidates;
    std::vector<int> rows;                   // at each step
    int width = 1, length = 0;               // rows of a line, and tokens that were read

public:
    Search(const Model& model, const Ask& ask, Crew& crew, int from, int to)
        : model(model), ask(ask), crew(crew), by(*model.head->by), stack(model.decoder), from(from),
          sentences(to - from), steps(ask.prompt_length + *std::max_element(ask.limits + from, ask.limits + to)) {}

    // Of each row.
    int logits_at_once(int rows) const { return crew.size() == 1 ? WORDS : std::max(WORDS, LOGITS / rows / WORDS * WORDS); }

    // How many rows there were at each step.
    std::vector<int> run(const Answers& answers, Stop& stop) {
        const long most = (long)sentences * ask.keep;
        const Memory memory(model, ask, crew, from, model.encoder.count ? from + sentences : from, stop);
        const int longest = std::max(steps, memory.longest), room = std::max<long>(most, prompted());
        Past past(stack, steps, most);
        Desk desk(by, stack, crew, room, longest);
        const Buffer x = buffer((size_t)room * stack.dim), logits = buffer(std::max<long>(most * WORDS, LOGITS));
        open(most, longest);
        read_prompts(desk, past, x.get(), stop);
        while (!live.empty()) {
            step(desk, memory, past, x.get());
            tell(desk, x.get(), logits.get());
            advance();
            stop.hear();
        }
        for (const Line& line : lines) answer(line, answers);
        return rows;
    }

private:
    void open(long rows, int longest) {
        lines.resize(sentences);
        for (int s = 0; s < sentences; ++s) {
            lines[s].sentence = s;
            live.push_back(s);
            tokens.push_back(ask.prompt[(long)(from + s) * ask.prompt_length + ask.prompt_length - 1]);
        }
        places.resize(rows * steps);
        next_places.resize(rows * steps);
        for (int i = 0; i < longest; ++i) every.push_back(i);
        banned.assign(ask.banned, ask.banned + ask.bans);
        const int asked = ask.expand + 1;
        best_logits.resize(rows * asked);
        best_words.resize(rows * asked);
        bests.resize(rows);
        for (long row = 0; row < rows; ++row)
            bests[row] = {0, 0, asked, 0, &best_logits[row * asked], &best_words[row * asked], -1, 0};
    }

    // Of a prompt all but its last token is read at once; that one is the first step's.
    int prompted() const { return ask.prompt_length > 1 ? std::max(TOKENS, ask.prompt_length - 1) : 0; }

    void read_prompts(Desk& desk, Past& past, float* x, Stop& stop) {
        const int dim = stack.dim;
        length = ask.prompt_length - 1;
        if (length == 0) return;
        for (int s = 0; s < sentences; ++s)
            for (int t = 0; t < length; ++t) places[(long)s * steps + t] = t * past.rows + s;
        const int at_once = std::max(1, TOKENS / length);
        const std::vector<int> lengths(at_once, length);
        for (int s = 0; s < sentences; s += at_once) {
            const int some = std::min(at_once, sentences - s);
            for (int i = 0; i < some; ++i)
                desk.embed(model.target, ask.prompt + (long)(from + s + i) * ask.prompt_length, length, 0,
                           x + (long)i * length * dim);
            desk.read(x, lengths.data(), some, true, [&](int block, const float* seen) {
                stop.hear();
                for (int i = 0; i < some * length; ++i)
                    keep(past, block, places[(long)(s + i / length) * steps + i % length], seen + 3L * dim * i);
            });
        }
    }

    void keep(Past& past, int block, long place, const float* key_and_value) {
        memcpy(past.keys[block].get() + place * 2 * stack.dim, key_and_value, sizeof(float) * 2 * stack.dim);
    }

    // One token more of every row that is alive, through the decoder.
    void step(Desk& desk, const Memory& memory, Past& past, float* x) {
        const int rows = live.size() * width, dim = stack.dim, head_dim = dim / stack.heads;
        for (int row = 0; row < rows; ++row) {
            places[(long)row * steps + length] = length * past.rows + row;
            desk.embed(model.target, &tokens[row], 1, length, x + (long)row * dim);
        }
        for (int i = 0; i < stack.count; ++i) {
            const Block& block = stack.blocks[i];
            desk.residual(block.around_attention, x, rows, [&](const float* h, float* y) {
                desk.product(*block.inward, h, rows, desk.inner.get());
                const float *q = desk.inner.get(), *keys = past.keys[i].get();
                for (int row = 0; row < rows; ++row)
                    keep(past, i, places[(long)row * steps + length], q + (3 * row + 1L) * dim);
                desk.each_head(rows, 2L * rows * (length + 1) * dim, [&](int row, int head, int some, float* scratch) {
                    const int at = head * head_dim;
                    by.look(q + 3L * row * dim + at, keys + at, keys + dim + at, &places[(long)row * steps], length + 1,
                            2L * dim, some, head_dim, scratch, desk.context.get() + (long)row * dim + at);
                });
                desk.product(*block.output, desk.context.get(), rows, y);
            });
            if (block.query) {
                desk.residual(block.around_cross, x, rows, [&](const float* h, float* y) {
                    desk.product(*block.query, h, rows, desk.inner.get());
                    desk.each_head(rows, 2L * rows * memory.longest * dim, [&](int row, int head, int some, float* scratch) {
                        const int sentence = lines[live[row / width]].sentence;
                        const long at = head * head_dim, own = (long)row * dim + at;
                        const float* keys = memory.keys[i].get() + memory.first[sentence] * 2 * dim + at;
                        by.look(desk.inner.get() + own, keys, keys + dim, every.data(), memory.lengths[sentence],
                                2L * dim, some, head_dim, scratch, desk.context.get() + own);
                    });
                    desk.product(*block.cross_output, desk.context.get(), rows, y);
                });
            }
            desk.feed_forward(block, x, rows);
        }
        if (stack.closing.weight) desk.normalise(stack.closing, x, rows, x);
        ++length;
    }

    // The likeliest words of every row; of many rows no more logits stand side by side than are seen at a time.
    void tell(Desk& desk, const float* x, float* logits) {
        const int rows = live.size() * width;
        const Matrix& head = *model.head;
        const Vectors v = desk.vectors(head, x, rows);
        for (int row = 0; row < rows; ++row) {
            bests[row].top = -std::numeric_limits<float>::infinity();
            bests[row].sum = 0;
            bests[row].found = 0;
            bests[row].wanted = forced(lines[live[row / width]]);
        }
        const bool too_early = lines[live[0]].said < ask.shortest;
        if (too_early) banned.push_back(ask.end);
        const int some = logits_at_once(rows);
        for (int panel = 0; panel < head.panels; panel += some / by.panel) {
            const int to = std::min(head.panels, panel + some / by.panel), first = panel * by.panel;
            desk.product(head, v, panel, to, logits, some);
            const int count = std::min(head.tall, to * by.panel) - first;
            desk.each_row(rows, count, [&](int row, int some_rows) {
                for (const int end = row + some_rows; row < end; ++row)
                    for (int at = 0; at < count; at += WORDS)
                        by.see(bests[row], logits + (long)row * some + at, first + at, std::min(WORDS, count - at),
                               banned.data(), banned.size());
            });
        }
        if (too_early) banned.pop_back();
    }

    // The next word of the prefix, where it is not over; -1 else.
    int forced(const Line& line) const {
        if (line.said >= ask.prefix_length) return -1;
        return ask.prefixes[(long)(from + line.sentence) * ask.prefix_length + line.said];
    }

    // Every line chooses how its hypotheses go on; those that are done leave.
    void advance() {
        std::vector<int> stay, said;
        int row = 0;
        rows.push_back(live.size() * width);
        for (size_t place = 0; place < live.size(); ++place) {
            Line& line = lines[live[place]];
            const int first = place * width;
            weigh(line, first);
            if (!follow(line, first)) continue;
            stay.push_back(live[place]);
            for (const Alive& one : line.alive) {
                said.push_back(one.word);
                std::copy_n(&places[(long)(first + one.parent) * steps], length, &next_places[(long)row++ * steps]);
            }
        }
        live = stay;
        tokens = said;
        places.swap(next_places);
        width = ask.keep;
    }

    // Candidates of a line, best first, at least as many as are kept.
    void weigh(const Line& line, int first) {
        candidates.clear();
        const int own = line.alive.size();
        for (int i = 0; i < own; ++i) {
            const Best& best = bests[first + i];
            if (!(best.sum > 0) || (best.found == 0 && best.wanted < 0))
                throw std::domain_error("no word is possible, or a logit is no number: the plain search knows what then");
            const float log_sum = std::log(best.sum);
            if (best.wanted >= 0) {
                candidates.push_back({line.alive[i].total + (best.wanted_logit - best.top) - log_sum, i, best.wanted});
                continue;
            }
            for (int n = 0, going = 0; n < best.found; ++n) {
                going += best.words[n] != ask.end;
                const bool one_too_many = best.words[n] != ask.end && going > ask.expand;
                const double chance = one_too_many ? NEVER : (best.logits[n] - best.top) - log_sum;
                candidates.push_back({line.alive[i].total + chance, i, best.words[n]});
            }
        }
        while ((int)candidates.size() < ask.keep) candidates.push_back({NEVER, own - 1, 0});
        std::stable_sort(candidates.begin(), candidates.end(), better);
    }

    // Some hypotheses end, the others become one word longer. True: the line goes on.
    bool follow(Line& line, int first) {
        const std::vector<Alive> before = line.alive;
        for (int i = 0; i < ask.keep; ++i) {
            const Candidate& one = candidates[i];
            if (one.word == ask.end && one.sum > NEVER)
                line.ended.push_back(
                    {before[one.parent].story, rank(one.sum, line.said + 1), one.sum, true, first + one.parent});
        }
        for (Candidate& one : candidates)
            if (one.word == ask.end) one.sum = NEVER;
        std::stable_sort(candidates.begin(), candidates.end(), better);
        line.alive.clear();
        for (int i = 0; i < ask.keep; ++i) {
            const Candidate& one = candidates[i];
            words.push_back({before[one.parent].story, one.word, first + one.parent});
            line.alive.push_back({one.sum, one.parent, one.word, (int)words.size() - 1});
        }
        ++line.said;
        const int missing = ask.keep - (int)line.ended.size();
        const bool able = line.alive[0].total > NEVER;
        if (able && line.said < ask.limits[from + line.sentence] && rank(line.alive[0].total, line.said) > least(line))
            return true;
        if (missing > 0 && (able || line.ended.empty())) cut(line, missing);
        return false;
    }

    // Whoever goes on has to rank higher than that: than the last of as many as are kept, once so many have ended.
    double least(const Line& line) const {
        if ((int)line.ended.size() < ask.keep) return NEVER;
        std::vector<double> scores;
        for (const Hypothesis& one : line.ended) scores.push_back(one.score);
        std::nth_element(scores.begin(), scores.begin() + ask.keep - 1, scores.end(), std::greater<double>());
        return scores[ask.keep - 1];
    }

    // What is left at the limit; one at least.
    void cut(Line& line, int missing) {
        for (int i = 0; i < missing; ++i) {
            const Alive& one = line.alive[i];
            if (i > 0 && one.total == NEVER) break;
            line.ended.push_back({one.story, rank(one.total, line.said), one.total, false, -1});
        }
    }

    double rank(double total, int length) const { return total / ask.penalties[length]; }

    void answer(const Line& line, const Answers& answers) {
        std::vector<Hypothesis> found = line.ended;
        std::stable_sort(found.begin(), found.end(), [](const Hypothesis& a, const Hypothesis& b) {
            return a.finished != b.finished ? a.finished : a.score > b.score;
        });
        const int sentence = from + line.sentence, count = std::min<int>(found.size(), ask.keep);
        answers.counts[sentence] = count;
        for (int i = 0; i < count; ++i) tell_of(found[i], (long)sentence * ask.keep + i, answers);
    }

    void tell_of(const Hypothesis& one, long at, const Answers& answers) {
        std::vector<Word> story;
        for (int place = one.story; place >= 0; place = words[place].before) story.push_back(words[place]);
        answers.lengths[at] = story.size();
        answers.finished[at] = one.finished;
        answers.scores[at] = one.score;
        answers.logprobs[at] = one.total;
        int *tokens = answers.tokens + at * ask.longest, *rows = answers.rows + at * ask.longest;
        for (; !story.empty(); story.pop_back()) {
            *tokens++ = story.back().word;
            *rows++ = story.back().row;
        }
        if (one.finished) *rows = one.last_row;
    }
};

// Each share has counted its own rows from nothing; in the batch those of earlier shares stand before them.
void count_all_rows(const Ask& ask, const Answers& answers, const std::vector<std::vector<int>>& rows) {
    std::vector<int> earlier(ask.longest);
    const std::vector<int>* own = nullptr;
    for (int s = 0; s < ask.sentences; ++s) {
        if (!rows[s].empty()) {
            for (size_t t = 0; own && t < own->size(); ++t) earlier[t] += (*own)[t];
            own = &rows[s];
        }
        for (long at = (long)s * ask.keep; at < (long)s * ask.keep + answers.counts[s]; ++at) {
            const int steps = answers.lengths[at] + answers.finished[at];
            for (int t = 0; t < steps; ++t) answers.rows[at * ask.longest + t] += earlier[t];
        }
    }
}

}  // namespace

extern "C" {

// The best answers to each sentence: some sentences in each share, and the threads divided among the shares.
int regard_search(const Model* model, const Ask* ask, const Answers* answers, int shares, int threads) {
    return shared_out(1, 1, [=](int, int) {
        Stop stop(ask->stop);
        std::vector<std::vector<int>> rows(ask->sentences);  // at each step, of the share that a sentence is the first of
        const bool done = crewed_out(ask->sentences, shares, threads, [&](int from, int to, Crew& crew) {
            if (from < to) rows[from] = Search(*model, *ask, crew, from, to).run(*answers, stop);
        }, stop.asking());
        if (!done) throw std::runtime_error("some of the sentences have no answer");
        count_all_rows(*ask, *answers, rows);
    });
}

}
