//! The table of boundary by fault.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use crate::boundary::boundaries;
use crate::fault::FAULTS;
use crate::run::Finished;

/// The results of many cases: of each boundary and fault, how many held and how many did not.
#[derive(Debug)]
pub struct Table {
    cells: BTreeMap<(usize, usize), (u32, u32)>,
}

impl Table {
    /// Counts cases.
    pub fn of(finished: &[Finished]) -> Self {
        let boundaries = boundaries();
        let mut cells = BTreeMap::new();
        for Finished { case, outcome, .. } in finished {
            let boundary = boundaries.iter().position(|boundary| *boundary == case.boundary);
            let fault = FAULTS.iter().position(|fault| *fault == case.fault);
            let (held, failed): &mut (u32, u32) =
                cells.entry((boundary.unwrap_or_default(), fault.unwrap_or_default())).or_default();
            *(if outcome.is_ok() { held } else { failed }) += 1;
        }
        Self { cells }
    }
}

/// The letter of a fault: a to z, then A, B, …
fn letter(fault: usize) -> char {
    ('a'..='z').chain('A'..='Z').nth(fault).unwrap_or('?')
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> =
            FAULTS.iter().enumerate().map(|(at, fault)| format!("{}: {fault}", letter(at))).collect();
        writeln!(formatter, "{}.\n", faults.join("; "))?;
        let letters: String = (0..FAULTS.len()).map(|at| format!(" {} |", letter(at))).collect();
        writeln!(formatter, "| number | killed |{letters}")?;
        writeln!(formatter, "|---|---|{}", "---|".repeat(FAULTS.len()))?;
        for (row, boundary) in boundaries().iter().enumerate() {
            let cells: String = (0..FAULTS.len())
                .map(|column| match self.cells.get(&(row, column)) {
                    None => "  |".to_owned(),
                    Some((held, 0)) => format!(" {held} |"),
                    Some((held, failed)) => format!(" **{failed} of {} failed** |", held + failed),
                })
                .collect();
            writeln!(formatter, "| {} | {boundary} |{cells}", row + 1)?;
        }
        Ok(())
    }
}

/// Replaces what a page has between the comments with this name. Returns an error that names what is missing.
pub fn write_into(page: &Path, name: &str, text: &str) -> Result<(), String> {
    let shown = page.display();
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->\n"));
    let old = std::fs::read_to_string(page).map_err(|error| format!("could not read {shown}: {error}"))?;
    let parts = old.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let (before, after) = parts.ok_or_else(|| format!("{shown} has no place for the {name}"))?;
    std::fs::write(page, format!("{before}{begin}{text}{end}{after}"))
        .map_err(|error| format!("could not write {shown}: {error}"))
}
