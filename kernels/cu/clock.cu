// The device's clock.

// When everything told before is done, in nanoseconds since some moment of the device's own. Streams of one
// device read the same clock.
KERNEL stamp(u64 *to) { *to = device_clock_ns(); }
