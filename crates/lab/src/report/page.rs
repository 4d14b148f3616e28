//! The frame of the report: head, style, script, sections.

use crate::results::Recorded;

/// HTML that grows section by section.
pub(super) struct Page {
    title: String,
    /// What stands before everything else.
    verdict: String,
    body: String,
    /// Anchors and titles for the navigation.
    sections: Vec<(String, String)>,
}

/// Text as HTML text or attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Control characters are not HTML. A reader sees that there was
            // one.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
    out
}

/// A text as an anchor.
pub(super) fn anchor(text: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    text.to_lowercase().chars().map(safe).collect()
}

impl Page {
    pub(super) fn new(recorded: &Recorded) -> Self {
        Self {
            title: format!("File systems side by side: {}", recorded.run.name),
            verdict: String::new(),
            body: String::new(),
            sections: Vec::new(),
        }
    }

    /// The sentence that stands first, and where it comes from.
    pub(super) fn first(&mut self, sentence: &str, made: &str) {
        self.verdict = format!(
            "<p class=\"verdict\">{}</p>\n<p class=\"soft made\">{}</p>\n",
            escape(sentence),
            escape(made)
        );
    }

    /// Begins a section; it ends with [`Page::end_section`].
    pub(super) fn section(&mut self, title: &str, lead: &str) {
        // The names of two experiments may give the same anchor. The number
        // distinguishes them.
        let id = format!("{}-{}", anchor(title), self.sections.len());
        self.body.push_str(&format!(
            "<section id=\"{id}\" aria-labelledby=\"h-{id}\">\n<h2 id=\"h-{id}\">{}</h2>\n",
            escape(title)
        ));
        if !lead.is_empty() {
            self.body
                .push_str(&format!("<p class=\"lead\">{}</p>\n", escape(lead)));
        }
        self.sections.push((id, title.to_owned()));
    }

    pub(super) fn end_section(&mut self) {
        self.body.push_str("</section>\n");
    }

    pub(super) fn heading(&mut self, title: &str) {
        self.body.push_str(&format!("<h3>{}</h3>\n", escape(title)));
    }

    /// A paragraph of HTML.
    pub(super) fn paragraph(&mut self, html: &str) {
        self.body.push_str(&format!("<p>{html}</p>\n"));
    }

    /// HTML as it is.
    pub(super) fn push(&mut self, html: &str) {
        self.body.push_str(html);
    }

    pub(super) fn finish(self) -> String {
        let links: String = self
            .sections
            .iter()
            .map(|(id, title)| format!("<li><a href=\"#{id}\">{}</a></li>", escape(title)))
            .collect();
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
             style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n\
             <link rel=\"icon\" href=\"data:,\">\n\
             <title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n\
             <a class=\"skip\" href=\"#main\">Skip to the results</a>\n\
             <header><h1>{title}</h1>\n{verdict}</header>\n\
             {patterns}<main id=\"main\">\n{body}</main>\n\
             <footer><div class=\"controls\" role=\"group\" aria-label=\"Display\">\
             <button type=\"button\" id=\"theme\">Theme: system</button> \
             <label><input type=\"checkbox\" id=\"durable\"> Hide unsafe cells</label></div>\n\
             <nav aria-label=\"Sections\"><ul>{links}</ul></nav></footer>\n\
             <script>\n{script}</script>\n</body>\n</html>\n",
            title = escape(&self.title),
            verdict = self.verdict,
            style = include_str!("report.css"),
            script = include_str!("report.js"),
            patterns = include_str!("patterns.svg"),
            body = self.body,
        )
    }
}
