/* host_refusal.h - why a block does not fall back to the host, such as a region in
 * which none may (oomph/offload.h). The caller holds the device lock.
 */
#pragma once
#include "core/alloc/request.h"

// Why the block must not, however much host memory there is; NULL: it may.
const char *oomph_host_ban(const oomph_request_context_t *ctx);
// The same, including that a stream captures.
const char *oomph_host_ban_now(const oomph_request_context_t *ctx);
// Why nothing may leave for its sake either, or that a stream captures.
const char *oomph_leaving_ban_now(const oomph_request_context_t *ctx);
// Whether a stream captures, or may: where the driver cannot say.
bool oomph_host_captures(oomph_streams_t *streams);

// The rung begins: this thread's last failure is forgotten.
void oomph_host_begin(void);
// Goes on without host memory, and keeps the driver's failure for the error's text.
oomph_rung_result_t oomph_host_go_without(oomph_status_t status);
// Why the rung gave nothing, in words for the error; of this thread, until the next
// call.
const char *oomph_host_refusal(const oomph_request_context_t *ctx);
// Bytes of device pages that the block lacks, after all free ones of other holes.
size_t oomph_missing_bytes(const oomph_request_context_t *ctx);
