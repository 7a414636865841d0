// Arithmetic between versions of weights, for schedules whose passes read other versions than the newest.
//
// Element by element, a thread takes four neighbours. Operations are rounded one by one, so that the bits
// are those of `kernels/src/reference/versions.rs`.

// to = w + step * (m / (sqrt(v) / correction2 + epsilon))
KERNEL adam_ahead(const float *w, const float *m, const float *v, float *to, u64 count, float step,
                  float correction2, float epsilon) {
    FOUR(count);
    const Four ms = load_four(m + at, here);
    const Four vs = load_four(v + at, here);
    Four ws = load_four(w + at, here);
    for (u32 i = 0; i < 4; ++i)
        ws.x[i] += step * (ms.x[i] / (sqrtf(vs.x[i]) / correction2 + epsilon));
    store_four(to + at, ws, here);
}

// to = w - rate * direction
KERNEL weights_along(const float *w, const float *direction, float *to, u64 count, float rate) {
    FOUR(count);
    const Four along = load_four(direction + at, here);
    Four ws = load_four(w + at, here);
    for (u32 i = 0; i < 4; ++i) ws.x[i] -= rate * along.x[i];
    store_four(to + at, ws, here);
}

// change = decay * change + rest * (after - before)
KERNEL track_change(const float *before, const float *after, float *change, u64 count, float decay,
                    float rest) {
    FOUR(count);
    const Four old = load_four(before + at, here);
    const Four now = load_four(after + at, here);
    Four mean = load_four(change + at, here);
    for (u32 i = 0; i < 4; ++i) mean.x[i] = decay * mean.x[i] + rest * (now.x[i] - old.x[i]);
    store_four(change + at, mean, here);
}

// Both move by alpha * (w - reference) towards each other.
KERNEL pull_together(float *w, float *reference, u64 count, float alpha) {
    FOUR(count);
    Four ws = load_four(w + at, here);
    Four rs = load_four(reference + at, here);
    for (u32 i = 0; i < 4; ++i) {
        const float pull = alpha * (ws.x[i] - rs.x[i]);
        ws.x[i] -= pull;
        rs.x[i] += pull;
    }
    store_four(w + at, ws, here);
    store_four(reference + at, rs, here);
}
