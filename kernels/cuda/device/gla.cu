// Gated linear attention: one log decay per token, head and key channel, no delta rule. T is diagonal: the decays' sum, exponentiated.
#include "recurrence_chunks.cuh"

RECURRENCE(gla_recurrence_64, 64, true, false)
RECURRENCE(gla_recurrence_128, 128, true, false)
RECURRENCE_CHUNKS(gla_chunks_64, 64, true, false)
RECURRENCE_CHUNKS(gla_chunks_128, 128, true, false)
