//! Which of the known names a misspelt one was probably meant to be.

/// The known name nearest to `found`, if it is near: at most two letters in five, and at least one,
/// may be wrong. Of equally near names the first. If none is near, the first that begins with it.
pub fn nearest<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let found = found.to_lowercase();
    let letters = found.chars().count();
    let is_near = |name: &str, distance: usize| {
        let longest = letters.max(name.chars().count());
        distance <= (longest * 2 / 5).max(1)
    };
    let distances = known.into_iter().map(|name| (name, distance(&found, name)));
    let distances: Vec<_> = distances.collect();
    let near = distances.iter().filter(|(name, far)| is_near(name, *far)).min_by_key(|x| x.1);
    let begun = || distances.iter().find(|(name, _)| letters > 2 && name.starts_with(&found));
    near.or_else(begun).map(|(name, _)| *name)
}

/// The number of letters to insert, delete, replace or exchange with their neighbour that lead from
/// one word to the other (optimal string alignment).
fn distance(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.chars().collect();
    let to: Vec<char> = to.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for i in 1..=from.len() {
        let mut next = vec![i];
        for j in 1..=to.len() {
            let replaced = row[j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut best = replaced.min(row[j] + 1).min(next[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            next.push(best);
        }
        (before, row) = (row, next);
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::{distance, nearest};

    #[test]
    fn distance_counts_edits() {
        let check = |from, to, expected| {
            assert_eq!(distance(from, to), expected, "{from} {to}");
            assert_eq!(distance(to, from), expected, "{to} {from}");
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
