/* meeting.h - how the ranks of a communicator come together for a collective, and
 * whether they mean the same one.
 */
#pragma once
#include "libnccl/operations/operation.h"

// At the first meeting all ranks tell what they give and call, at the second they have
// read it. Ranks that call different things get no further.
extern const oomph_sim_meeting_t nccl_first_meeting, nccl_second_meeting;
