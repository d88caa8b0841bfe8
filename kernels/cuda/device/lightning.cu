// Scalar decays without the delta rule: lightning attention and RetNet (Ring, MiniMax), Mamba-2, plain linear attention.
// T is a number.
#include "recurrence_chunks.cuh"

RECURRENCE(lightning_recurrence_64, 64, false, false)
RECURRENCE(lightning_recurrence_128, 128, false, false)
RECURRENCE_CHUNKS(lightning_chunks_64, 64, false, false)
RECURRENCE_CHUNKS(lightning_chunks_128, 128, false, false)
