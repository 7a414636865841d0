//! Blocks of code in pages, between fences of three backticks.

/// A block of a page.
pub struct Block<'a> {
    /// What stands behind the fence: the language, and what is special about it.
    pub info: &'a str,
    /// Its lines.
    pub text: String,
}

/// The blocks of a page, in order.
pub fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let inside = lines.by_ref().take_while(|line| !line.starts_with("```"));
        let text = inside.flat_map(|line| [line, "\n"]).collect();
        found.push(Block { info: info.trim(), text });
    }
    found
}
