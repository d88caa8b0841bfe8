// Gated DeltaNet (Qwen3-Next, Qwen3.5): one log decay per token and head.
#include "recurrence_chunks.cuh"

RECURRENCE(gdn_recurrence_64, 64, false, true)
RECURRENCE(gdn_recurrence_128, 128, false, true)
RECURRENCE_CHUNKS(gdn_chunks_64, 64, false, true)
RECURRENCE_CHUNKS(gdn_chunks_128, 128, false, true)

// For rows whose outputs go on in the format of the inputs.
RECURRENCE_AS(gdn_recurrence_64_bf16, 64, false, true, bf16, bf16)
RECURRENCE_AS(gdn_recurrence_128_bf16, 128, false, true, bf16, bf16)
RECURRENCE_AS(gdn_recurrence_64_f32, 64, false, true, float, float)
RECURRENCE_AS(gdn_recurrence_128_f32, 128, false, true, float, float)
RECURRENCE_CHUNKS_AS(gdn_chunks_64_bf16, 64, false, true, bf16)
RECURRENCE_CHUNKS_AS(gdn_chunks_128_bf16, 128, false, true, bf16)
