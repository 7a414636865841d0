//! Patterns of a `tokenizer.json` are written for Oniguruma with Ruby's syntax. They are translated where the
//! regular expressions used here read the same text otherwise.

use serde_json::Value;

/// Rewrites the patterns in a `tokenizer.json`. Returns whether any was.
pub(super) fn translate_patterns(json: &mut Value) -> bool {
    match json {
        Value::Object(map) => {
            let mut is_rewritten = false;
            // Vocabularies hold no patterns.
            for (key, value) in map.iter_mut().filter(|(key, _)| *key != "vocab") {
                let pattern = value.as_str().filter(|_| key == "Regex").map(translate);
                match pattern {
                    Some(pattern) => {
                        is_rewritten |= value.as_str() != Some(&pattern);
                        *value = Value::String(pattern);
                    }
                    None => is_rewritten |= translate_patterns(value),
                }
            }
            is_rewritten
        }
        Value::Array(values) => {
            values.iter_mut().fold(false, |rewritten, value| translate_patterns(value) | rewritten)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// A pattern of Ruby's syntax in that of the crate `regex`: `^` and `$` are those of lines, `(?m)` lets a dot
/// match a newline, `{n,m}+` repeats and is not possessive, and classes in brackets are Unicode's.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    // Where groups that are open begin, and the last atom, which a quantifier is of.
    let mut groups = Vec::new();
    let mut atom = 0;
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '\\' => escape_len(rest),
            '[' => class_len(rest),
            '(' => group_len(rest),
            '{' => counted_len(rest).unwrap_or(1),
            _ => c.len_utf8(),
        };
        let (part, behind) = rest.split_at(length);
        let is_counted = c == '{' && length > 1;
        match c {
            '(' => {
                groups.push(out.len());
                out += &group(part);
            }
            ')' => {
                atom = groups.pop().unwrap_or(0);
                out.push(')');
            }
            '?' | '*' | '+' => out.push(c),
            '{' if is_counted => {
                out += part;
                if behind.starts_with('+') {
                    out.insert_str(atom, "(?:");
                    out.push(')');
                }
            }
            _ => {
                atom = out.len();
                match part {
                    "^" => out += "(?m:^)",
                    "$" => out += "(?m:$)",
                    "\\Z" => out += r"(?=\n?\z)",
                    _ if c == '[' => out += &class(part),
                    _ => out += part,
                }
            }
        }
        rest = behind;
    }
    out
}

/// An escape, with the name of a property.
fn escape_len(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    let Some((at, c)) = characters.next() else { return rest.len() };
    let end = at + c.len_utf8();
    let has_name = matches!(c, 'p' | 'P' | 'x' | 'k' | 'g' | 'u') && rest[end..].starts_with('{');
    if has_name { rest[end..].find('}').map_or(rest.len(), |at| end + at + 1) } else { end }
}

/// A class in brackets, with the classes in it.
fn class_len(rest: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    let mut is_first = false;
    while let Some(c) = rest[at..].chars().next() {
        let begins = c == '[';
        match c {
            '\\' => {
                at += escape_len(&rest[at..]);
                is_first = false;
                continue;
            }
            '[' => depth += 1,
            // The first character of a class may be its own closing bracket.
            ']' if !is_first => depth -= 1,
            _ => {}
        }
        at += c.len_utf8();
        is_first = begins || (is_first && c == '^');
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// The beginning of a group, with its flags.
fn group_len(rest: &str) -> usize {
    let Some(flags) = rest.strip_prefix("(?") else { return 1 };
    let count = flags.chars().take_while(|c| c.is_ascii_alphabetic() || *c == '-').count();
    match flags[count..].chars().next() {
        Some(':') if count > 0 => 2 + count + 1,
        // Flags alone are no group: the bracket that closes them is an atom's.
        _ => 2 + count,
    }
}

/// The same with Oniguruma's flag for a dot that matches a newline.
fn group(part: &str) -> String {
    let flags = part.strip_prefix("(?").unwrap_or_default();
    let is_flags = flags.chars().all(|c| c.is_ascii_alphabetic() || matches!(c, '-' | ':'));
    if is_flags { part.replace('m', "s") } else { part.to_owned() }
}

/// A count in braces.
fn counted_len(rest: &str) -> Option<usize> {
    let end = rest.find('}')?;
    let mut bounds = rest[1..end].split(',');
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_count = end > 1 && bounds.clone().count() <= 2 && bounds.all(is_number);
    is_count.then_some(end + 1)
}

/// A class whose named parts, and those that are not in one, are Unicode's.
fn class(part: &str) -> String {
    const NAMES: [(&str, &str); 6] = [
        ("alpha", r"\p{Alphabetic}"),
        ("alnum", r"\p{Alphabetic}\p{Nd}"),
        ("digit", r"\p{Nd}"),
        ("lower", r"\p{Lowercase}"),
        ("space", r"\s"),
        ("upper", r"\p{Uppercase}"),
    ];
    NAMES.iter().fold(part.to_owned(), |class, (name, unicode)| {
        let class = class.replace(&format!("[:{name}:]"), unicode);
        class.replace(&format!("[:^{name}:]"), &format!("[^{unicode}]"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{translate, translate_patterns};

    #[test]
    fn what_is_read_otherwise_is_translated_and_nothing_else() {
        let same = [
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
            r"[^\r\n\p{L}\p{N}]?+\p{L}++|[$^+]|\$\^|[]a]|[^]a]|(?<=a)b(?!c)|\x{41}{2}|a{,}",
        ];
        for pattern in same {
            assert_eq!(translate(pattern), pattern);
        }
        let others = [
            (r"\p{N}{1,3}+|a", r"(?:\p{N}{1,3})+|a"),
            (r"x(ab|[c+]){2}+", r"x(?:(ab|[c+]){2})+"),
            (r"\s++$|^a", r"\s++(?m:$)|(?m:^)a"),
            (r"a\Z", r"a(?=\n?\z)"),
            (r"(?m).|(?im:.)", r"(?s).|(?is:.)"),
            (r"[[:alpha:]_]+[[:^digit:]x]", r"[\p{Alphabetic}_]+[[^\p{Nd}]x]"),
            (r"[^[:^alnum:]]", r"[^[^\p{Alphabetic}\p{Nd}]]"),
        ];
        for (pattern, expected) in others {
            assert_eq!(translate(pattern), expected);
        }
    }

    #[test]
    fn patterns_are_found_where_they_stand() {
        let file = |pattern: &str| {
            json!({"model": {"vocab": {"Regex": "$"}}, "pre_tokenizer": {"type": "Sequence",
                "pretokenizers": [{"type": "Split", "pattern": {"Regex": pattern}}]}})
        };
        let mut json = file("a$");
        assert!(translate_patterns(&mut json));
        assert_eq!(json, file("a(?m:$)"));
        assert!(!translate_patterns(&mut file("a")));
    }
}
