//! Weights of others mixed into a layer's own, as islands do.

/// Mixes weights into a layer's own, which keep this share.
///
/// # Panics
/// If their numbers differ.
pub fn mix(own: &mut [f32], outer: &[f32], local_share: f32) {
    assert_eq!(own.len(), outer.len(), "of one layer");
    if local_share == 0.0 {
        return own.copy_from_slice(outer);
    }
    for (own, outer) in own.iter_mut().zip(outer) {
        *own = local_share * *own + (1.0 - local_share) * outer;
    }
}

#[cfg(test)]
mod tests {
    use super::mix;

    #[test]
    fn a_share_of_nothing_is_the_outcome_whatever_it_replaces() {
        let mut own = [f32::NAN, 1.0];
        mix(&mut own, &[2.0, 3.0], 0.0);
        assert_eq!(own, [2.0, 3.0]);
        mix(&mut own, &[4.0, 4.0], 0.25);
        assert_eq!(own, [3.5, 3.75]);
    }
}
