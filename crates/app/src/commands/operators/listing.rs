//! The output of commands that list items in pages.

use std::io::Write;

use serde::Serialize;

use super::{Cell, Column, CommandLine, Paging, Style, print_rows, table};
use crate::commands::output::{print_json, print_line};

/// The form of a list.
pub(crate) struct Listing<'a, T, const N: usize> {
    /// The noun of an item, such as `dead letter`.
    pub(crate) what: &'static str,
    /// The columns.
    pub(crate) columns: [Column; N],
    /// The row of an item.
    pub(crate) row: fn(&T) -> [Cell; N],
    /// The requested page.
    pub(crate) paging: &'a Paging,
}

impl<T, const N: usize> Listing<'_, T, N> {
    /// Prints a page: the items, and the cursor of the next page. `command` is the command line without
    /// paging.
    pub(crate) fn print<D: Serialize>(
        &self,
        out: &mut impl Write,
        style: Style,
        (items, cursor): (Vec<T>, Option<String>),
        document: fn(Vec<T>, Option<String>) -> D,
        command: CommandLine,
    ) -> anyhow::Result<()> {
        let what = self.what;
        match &*items {
            _ if self.paging.output.json => print_json(out, &document(items, cursor.clone()))?,
            [] if cursor.is_some() => {
                print_line(out, &format!("no {what} is found among the rows of this page"))?;
            }
            [] => print_line(out, &format!("no {what} is found"))?,
            items => print_rows(out, style, &table(style, self.columns, items.iter().map(self.row)))?,
        }
        command.print_next(self.paging, cursor);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        paging: Paging,
    }

    #[test]
    fn a_page_without_rows_says_whether_there_may_be_more() {
        let printed = |arguments: &[&str], items: Vec<u8>, cursor: Option<&str>| {
            let cli = Cli::parse_from([&["list"], arguments].concat());
            let row = |item: &u8| [item.to_string().into()];
            let listing =
                Listing { what: "letter", columns: [Column::new("ID", 0)], row, paging: &cli.paging };
            let (page, line) = ((items, cursor.map(str::to_owned)), CommandLine::new("letters"));
            let mut out = Vec::new();
            let document = |items, cursor| (items, cursor);
            listing.print(&mut out, Style::PLAIN, page, document, line).expect("memory takes it");
            String::from_utf8(out).expect("text")
        };
        assert_eq!(printed(&[], Vec::new(), None), "no letter is found\n");
        assert_eq!(printed(&[], Vec::new(), Some("c")), "no letter is found among the rows of this page\n");
        assert_eq!(printed(&[], vec![1], Some("c")), "ID\n1\n");
        assert_eq!(printed(&["--json"], vec![1], Some("c")), "[[1],\"c\"]\n");
    }
}
