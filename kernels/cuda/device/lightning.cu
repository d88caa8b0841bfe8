// Lightning attention and RetNet (Ring, MiniMax): a fixed log decay per head, no delta rule. T is a number and is not stored.
#include "recurrence.cuh"

RECURRENCE(lightning_recurrence_64, 64, false, false)
RECURRENCE(lightning_recurrence_128, 128, false, false)
