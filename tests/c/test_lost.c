/* Moves that the driver neither does nor undoes: every call fails from one on. What can
 * still be used keeps its contents; what cannot nobody ever gets, and the error says
 * so.
 */
#include "card.h"
#include "core/device/lookup.h"

enum { BYTES = 3 << 20, SOME_LOST = 100, NEVER_REACHED }; // how a child exits

static unsigned call_now;

static bool is_lost(oomph_addr_t addr)
{
    const oomph_device_t *device = oomph_device_peek(0);

    return oomph_segment_block(oomph_device_segment(device, addr), addr)->leaked;
}

// Two runs, on pages that they share with what is free.
static void move_two(void)
{
    oomph_config_t config = test_config();
    oomph_move_t moves[2];
    size_t moved_bytes;
    int lost = 0;

    config.host_limit_bytes = 64 * MIB;
    start_card("20MiB,context=0,memory=real", &config);
    moves[0].addr = take(BYTES, NULL);
    oomph_addr_t gap = take(BYTES, NULL);
    moves[1].addr = take(BYTES, NULL);
    give(gap);
    for (int i = 0; i < 2; i++)
        mark(moves[i].addr, BYTES, moves[i].addr);
    unsigned before = call_count();
    fail_from_call(call_now, OOMPH_ERR_DRIVER);
    oomph_status_t status = oomph_move(0, OOMPH_TIER_HOST, moves, 2, &moved_bytes);
    bool reached = call_count() - before >= call_now;
    bool says_lost = strstr(oomph_error_detail(), "is lost") != NULL;
    fail_call(0, OOMPH_OK);
    CHECK(reached || status == OOMPH_OK);
    check_sound();
    for (int i = 0; i < 2; i++) {
        if (is_lost(moves[i].addr))
            lost++;
        else
            CHECK(is_marked(moves[i].addr, BYTES, moves[i].addr));
        give(moves[i].addr);
        check_sound();
    }
    CHECK(says_lost == (lost > 0));
    for (int i = 0; i < 2; i++) { // memory of others is none of what was lost
        oomph_addr_t addr = take(6 * MIB, NULL);
        mark(addr, 6 * MIB, addr);
    }
    check_sound();
    exit(!reached ? NEVER_REACHED : lost > 0 ? SOME_LOST : 0);
}

static void what_cannot_be_mapped_again_is_lost_and_kept_from_everybody(void)
{
    int code = 0, lost = 0;

    for (call_now = 1; code != NEVER_REACHED; call_now++) {
        code = in_child(move_two);
        CHECK(code == 0 || code == SOME_LOST || code == NEVER_REACHED);
        lost += code == SOME_LOST;
    }
    CHECK(lost > 0);
}

int main(int argc, char **argv)
{
    static const test_t tests[] = {
        TEST(what_cannot_be_mapped_again_is_lost_and_kept_from_everybody),
    };

    return run_tests(tests, sizeof tests / sizeof tests[0], argc, argv);
}
