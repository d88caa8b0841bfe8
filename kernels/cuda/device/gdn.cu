// Gated DeltaNet (Qwen3-Next, Qwen3.5): one log decay per token and head.
#include "recurrence.cuh"

RECURRENCE(gdn_recurrence_64, 64, false, true)
RECURRENCE(gdn_recurrence_128, 128, false, true)
