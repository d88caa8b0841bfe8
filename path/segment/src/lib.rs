//! Station 1: a request's prompt, cut into segments.
