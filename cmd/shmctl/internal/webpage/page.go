// Package webpage writes what was measured as one page of HTML that needs nothing else: tables, and
// plots as pictures in it.
package webpage

import (
	"fmt"
	"html/template"
	"io"
)

// Page is a report.
type Page struct {
	Title    string
	Facts    []string // about the machine and the program, a line each
	Sections []Section
}

// Section is one part: some words, plots, and the figures that they show.
type Section struct {
	Title  string
	Text   string
	Charts []Chart
	Head   []string // of the table
	Cells  [][]string
}

// Write writes the page.
func (p *Page) Write(w io.Writer) error {
	return page.Execute(w, p)
}

// drawn is what the template calls for each chart.
func drawn(c Chart) (template.HTML, error) {
	svg, err := c.svg()
	if err != nil {
		return "", fmt.Errorf("plot %q: %w", c.Title, err)
	}
	return template.HTML(svg), nil
}

var page = template.Must(template.New("page").Funcs(template.FuncMap{"draw": drawn}).Parse(
	`<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{.Title}}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em }
table { border-collapse: collapse; font-size: 13px }
td, th { padding: .15em .7em; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child, td:last-child, th:last-child { text-align: left }
figure { display: inline-block; margin: 1em 1em 1em 0 }
svg { max-width: 100%; height: auto }
</style>
<h1>{{.Title}}</h1>
<ul>{{range .Facts}}<li>{{.}}</li>{{end}}</ul>
{{range .Sections}}
<h2>{{.Title}}</h2>
<p>{{.Text}}</p>
{{range .Charts}}<figure>{{draw .}}</figure>
{{end}}{{if .Head}}<table>
<tr>{{range .Head}}<th>{{.}}</th>{{end}}</tr>
{{range .Cells}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</table>{{end}}
{{end}}</html>
`))
