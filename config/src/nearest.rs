//! Which of the known names a misspelt one was probably meant to be.

use strsim::osa_distance;

/// The known names near to `found`, the nearest first and of equally near names the first, at most so
/// many. See [`nearest`] for what is near.
pub fn nearest_few<'a>(
    found: &str,
    known: impl IntoIterator<Item = &'a str>,
    count_max: usize,
) -> Vec<&'a str> {
    let distances = known.into_iter().map(|name| (osa_distance(found, name), name));
    let mut near: Vec<_> = distances.filter(|(far, name)| is_near(found, name, *far)).collect();
    near.sort_by_key(|(far, _)| *far);
    near.into_iter().take(count_max).map(|(_, name)| name).collect()
}

/// Whether a name that is so many letters away is near.
fn is_near(found: &str, name: &str, distance: usize) -> bool {
    let longest = found.chars().count().max(name.chars().count());
    distance <= (longest * 2 / 5).max(1)
}

/// The known name nearest to `found`, if it is near: at most two letters in five, and at least one,
/// may be wrong. Of equally near names the first. If none is near, the first that begins with it.
/// A letter that is inserted, deleted, replaced or exchanged with its neighbour is one wrong letter
/// (optimal string alignment).
pub fn nearest<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let found = found.to_lowercase();
    let letters = found.chars().count();
    let distances = known.into_iter().map(|name| (name, osa_distance(&found, name)));
    let distances: Vec<_> = distances.collect();
    let near =
        distances.iter().filter(|(name, far)| is_near(&found, name, *far)).min_by_key(|x| x.1);
    let begun = || distances.iter().find(|(name, _)| letters > 2 && name.starts_with(&found));
    near.or_else(begun).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::{nearest, osa_distance};

    #[test]
    fn distance_counts_edits() {
        let check = |from, to, expected| {
            assert_eq!(osa_distance(from, to), expected, "{from} {to}");
            assert_eq!(osa_distance(to, from), expected, "{to} {from}");
        };
        check("", "", 0);
        check("", "abc", 3);
        check("heads", "heads", 0);
        check("headz", "heads", 1);
        check("stpes", "steps", 1);
        check("kitten", "sitting", 3);
        check("microbatch", "micro_batch", 1);
    }

    #[test]
    fn only_a_near_name_is_suggested() {
        let known = ["lr", "betas", "weight_decay", "zb-h1", "zb-h2"];
        let check = |found, expected| assert_eq!(nearest(found, known), expected, "{found}");
        check("Lr", Some("lr"));
        check("l", Some("lr"));
        check("zb-h3", Some("zb-h1"));
        check("zbh2", Some("zb-h2"));
        check("weightdecay", Some("weight_decay"));
        check("wei", Some("weight_decay"));
        check("zb", None);
        check("batch", None);
        check("learning_rate", None);
        check("", None);
    }
}
