# Split make's SET into words as a shell does, without expanding anything: `SET='model.name="my model" a.b=1'`.
#
# Words are parted by white space. '…' holds its text as it is; in "…" a backslash stands before \ " $ ` only; elsewhere
# it keeps the next character. $, `, *, ~ and # are characters like others: nothing is run and nothing is looked up.
#
# Reads:      the text on stdin, where the control character RS (octal 036) may stand for a line break
# Writes:     `--set WORD` for each word, quoted for a shell, on one line; on stderr what cannot be split
# Exit codes: 0; 2 a quote is not closed, or a quoted value holds a line break
# Example:    echo "a.b=1 c.d='x y'" | awk -f scripts/split_settings.awk
{ text = text (NR > 1 ? "\n" : "") $0 }

END {
  gsub(/\036/, "\n", text)
  for (place = 1; place <= length(text); place++) {
    letter = substr(text, place, 1)
    following = substr(text, place + 1, 1)
    if (quote == "'") {
      if (letter == "'") quote = ""
      else add(letter)
    } else if (letter == "\\" && following != "" && (quote == "" || index("\\\"$`\n", following))) {
      if (following != "\n") add(following)
      place++
    } else if (quote == "\"") {
      if (letter == "\"") quote = ""
      else add(letter)
    } else if (letter == "'" || letter == "\"") {
      quote = letter
      opened = place
      inside = 1
    } else if (index(" \t\r\n", letter)) {
      finish()
    } else {
      add(letter)
    }
  }
  if (quote != "")
    refuse("the " quote " before " substr(text, opened + 1, 20) " is not closed; an apostrophe itself is written \"it's\"")
  finish()
  print line
}

function add(letter) {
  if (letter == "\n")
    refuse("the value " word "… holds a line break; write the value into a configuration file")
  word = word letter
  inside = 1
}

function finish() {
  if (!inside) return
  if (word !~ "^[A-Za-z0-9_.,:/=+@%-]+$") {
    gsub(/'/, "'\\''", word)
    word = "'" word "'"
  }
  line = line (line == "" ? "" : " ") "--set " word
  word = ""
  inside = 0
}

function refuse(why) {
  print "SET: " why "." | "cat >&2"
  close("cat >&2")
  exit 2
}
