// Kimi delta attention: one log decay per token, head and key channel; the decay acts before the delta rule.
#include "recurrence_chunks.cuh"

RECURRENCE(kda_recurrence_64, 64, true, true)
RECURRENCE(kda_recurrence_128, 128, true, true)
RECURRENCE_CHUNKS(kda_chunks_64, 64, true, true)
RECURRENCE_CHUNKS(kda_chunks_128, 128, true, true)
