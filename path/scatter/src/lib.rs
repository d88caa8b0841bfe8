//! Station 4: fan out, gather handles.
