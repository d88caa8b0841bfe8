// Gated DeltaNet (Qwen3-Next, Qwen3.5): one log decay per token and head.
#include "recurrence_chunks.cuh"

RECURRENCE(gdn_recurrence_64, 64, false, true)
RECURRENCE(gdn_recurrence_128, 128, false, true)
RECURRENCE_CHUNKS(gdn_chunks_64, 64, false, true)
RECURRENCE_CHUNKS(gdn_chunks_128, 128, false, true)
