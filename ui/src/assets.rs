//! The files of the page, as they are in the program.

/// A file of the page.
pub struct PageAsset {
    /// Its path in addresses.
    pub path: &'static str,
    /// Its media type.
    pub content: &'static str,
    /// Its text.
    pub text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// The files that are served to whoever may look: the page, and what it links in the order in which
/// scripts run.
pub const ASSETS: &[PageAsset] = &[
    PageAsset { path: "/", content: HTML, text: include_str!("../assets/index.html") },
    PageAsset { path: "/uplot.js", content: SCRIPT, text: include_str!("../assets/uplot.js") },
    PageAsset { path: "/charts.js", content: SCRIPT, text: include_str!("../assets/charts.js") },
    PageAsset { path: "/lanes.js", content: SCRIPT, text: include_str!("../assets/lanes.js") },
    PageAsset { path: "/app.js", content: SCRIPT, text: include_str!("../assets/app.js") },
    PageAsset { path: "/uplot.css", content: STYLE, text: include_str!("../assets/uplot.css") },
];
/// The style of the page, which the login needs too.
pub const STYLE_SHEET: PageAsset =
    PageAsset { path: "/style.css", content: STYLE, text: include_str!("../assets/style.css") };
/// The page that a token is entered in.
pub const LOGIN: PageAsset =
    PageAsset { path: "/login", content: HTML, text: include_str!("../assets/login.html") };

/// The page with everything in one file, showing `snapshot`, the JSON of a dashboard's snapshot. It
/// connects to nothing.
#[must_use]
pub fn report_page(snapshot: &str) -> String {
    // Within a script, `</` would end it; JSON has `<` in texts alone, where the escape is the same.
    let snapshot = snapshot.replace('<', "\\u003c");
    let mut page = ASSETS[0].text.to_owned();
    // Scripts run once the page is there, in the order of their links.
    let mut scripts =
        format!("<script type=\"application/json\" id=\"snapshot\">{snapshot}</script>\n");
    for asset in ASSETS.iter().chain([&STYLE_SHEET]).skip(1) {
        let name = asset.path.trim_start_matches('/');
        let (linked, inlined) = if asset.content == STYLE {
            let linked = format!("<link rel=\"stylesheet\" href=\"{name}\">");
            (linked, format!("<style>{}</style>", asset.text))
        } else {
            scripts.push_str(&format!("<script>{}</script>\n", asset.text));
            (format!("<script src=\"{name}\" defer></script>"), String::new())
        };
        page = page.replacen(&linked, &inlined, 1);
    }
    match page.rfind("</body>") {
        Some(end) => page.insert_str(end, &scripts),
        None => page.push_str(&scripts),
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_view::{LANE_STEPS_KEPT, MARKS_KEPT, STEPS_KEPT};

    /// Bytes of the page before compression: beyond it, it is not small.
    const PAGE_BYTES_MAX: usize = 300 << 10;

    #[test]
    fn the_page_is_small_and_names_no_other_site() {
        let assets = || ASSETS.iter().chain([&STYLE_SHEET, &LOGIN]);
        let total: usize = assets().map(|asset| asset.text.len()).sum();
        assert!(total < PAGE_BYTES_MAX, "{total} bytes");
        for asset in assets() {
            let outside = asset.text.replace("http://www.w3.org/", "");
            let is_outside = outside.contains("http://")
                || outside.contains("https://github")
                || outside.contains("//cdn");
            // The licence of uPlot in its first line names its repository.
            assert!(!is_outside || asset.path == "/uplot.js", "{}", asset.path);
        }
    }

    #[test]
    fn the_page_forgets_what_the_dashboard_forgets() {
        let app = ASSETS.iter().find(|asset| asset.path == "/app.js").expect("it is an asset");
        let limits = format!(
            "STEPS_KEPT = {STEPS_KEPT}, MARKS_KEPT = {MARKS_KEPT}, LANES_KEPT = {LANE_STEPS_KEPT},"
        );
        assert!(app.text.contains(&limits), "{limits}");
    }

    #[test]
    fn a_report_is_one_file_whose_texts_end_no_script() {
        let page = report_page("{\"text\":\"</script><b>\"}");
        assert!(page.contains("{\"text\":\"\\u003c/script>\\u003cb>\"}"));
        let is_loading = page.contains("rel=\"stylesheet\"") || page.contains("<script src");
        assert!(!is_loading, "nothing is loaded");
        assert!(page.contains("<style>") && page.contains("uPlot"));
    }
}
